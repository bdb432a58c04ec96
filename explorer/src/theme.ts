// Colours: of the page by CSS, of the drawing by the same variables; operators by what they are for.

import type { Node } from "./data";

export interface Palette {
  paper: string;
  card: string;
  group: string[];
  ink: string;
  muted: string;
  faint: string;
  line: string;
  wire: string;
  accent: string;
  mark: string;
  isDark: boolean;
}

export function readPalette(): Palette {
  const style = getComputedStyle(document.documentElement);
  const get = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  return {
    paper: get("paper"),
    card: get("card"),
    group: [get("group-0"), get("group-1")],
    ink: get("ink"),
    muted: get("muted"),
    faint: get("faint"),
    line: get("line"),
    wire: get("wire"),
    accent: get("accent"),
    mark: get("mark"),
    isDark: document.documentElement.dataset["theme"] === "dark",
  };
}

export interface Category {
  name: string;
  hue: string;
}

const CATEGORIES: [RegExp, Category][] = [
  [/conv|^(add)?mm$|bmm|matmul|linear|dot|einsum|^mv$|attention/, { name: "products", hue: "#4c6ef5" }],
  [/norm/, { name: "norms", hue: "#15aabf" }],
  [/relu|gelu|silu|sigmoid|tanh|softmax|swish|mish|elu|softplus|hardtanh|glu/, { name: "activations", hue: "#e8590c" }],
  [/pool|upsample|interpolat|resize|pad/, { name: "pooling", hue: "#7048e8" }],
  [/view|reshape|permute|transpose|^t$|squeeze|expand|slice|select|split|cat|stack|clone|copy|contiguous|narrow|repeat|roll|flip|alias|chunk|unbind|dim_order|as_strided|detach/, { name: "layout", hue: "#868e96" }],
  [/embedding|gather|scatter|index|take|where|masked|sort|topk|nonzero/, { name: "indexing", hue: "#c2255c" }],
  [/sum|mean|amax|amin|argmax|argmin|max|min|var|std|prod|any|all|cumsum|logsumexp/, { name: "reductions", hue: "#2f9e44" }],
  [/full|zeros|ones|arange|empty|rand|scalar_tensor|eye|tril|triu|linspace|bernoulli|dropout|tensor/, { name: "creation", hue: "#a9824f" }],
  [/assert|sym_|check/, { name: "sizes", hue: "#adb5bd" }],
];
const ELEMENTWISE: Category = { name: "elementwise", hue: "#f59f00" };
const SPECIAL: Partial<Record<Node["kind"], Category>> = {
  input: { name: "inputs", hue: "#12b886" },
  output: { name: "outputs", hue: "#12b886" },
  parameter: { name: "weights", hue: "#94a3b8" },
  buffer: { name: "weights", hue: "#94a3b8" },
  constant: { name: "weights", hue: "#94a3b8" },
  control: { name: "control flow", hue: "#e64980" },
  delegate: { name: "delegates", hue: "#7950f2" },
  size: { name: "sizes", hue: "#adb5bd" },
  item: { name: "items", hue: "#adb5bd" },
  attribute: { name: "items", hue: "#adb5bd" },
};

const known = new Map<string, Category>();

export function categoryOf(node: Node): Category {
  const special = SPECIAL[node.kind];
  if (special) return special;
  let found = known.get(node.short);
  if (!found) {
    found = CATEGORIES.find(([pattern]) => pattern.test(node.short))?.[1] ?? ELEMENTWISE;
    known.set(node.short, found);
  }
  return found;
}

/** Colours that are far apart, for what has no colour of its own: backends, dtypes. */
const WHEEL = ["#7950f2", "#12b886", "#f76707", "#228be6", "#e64980", "#82c91e", "#fab005", "#15aabf"];

export function wheel(index: number): string {
  return WHEEL[index % WHEEL.length]!;
}

export function setTheme(theme: "light" | "dark"): void {
  document.documentElement.dataset["theme"] = theme;
}

export function firstTheme(): "light" | "dark" {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
