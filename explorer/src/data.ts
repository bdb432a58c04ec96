// The data of a page, as lostwax/explorer writes it, and what is read off it once.

export const KINDS = [
  "input", "parameter", "buffer", "constant", "operator", "item", "attribute", "output",
  "control", "delegate", "size",
] as const;
export type Kind = (typeof KINDS)[number];

interface Columns {
  name: string[];
  kind: number[];
  target: number[];
  type: number[];
  call: number[];
  module: number[];
  stack: number[];
  graph: number[];
  inputs: number[][];
  bytes: number[];
  origin: number[];
  note: number[];
}

export interface GraphInfo {
  name: string;
  owner: number;
  kind: "program" | "body" | "delegate";
  backend?: string;
  bytes?: number;
}

export interface SymbolInfo {
  name: string;
  lo: number | null;
  hi: number | null;
  example?: number | null;
  place?: string;
  declared?: string | null;
}

export interface Memory {
  kind: "plan" | "lifetimes";
  steps: number[];
  /** Node, first step, last step, offset (-1: none), bytes. */
  blocks: [number, number, number, number, number][];
  weights: number;
  unknown: number;
  arena: number;
}

/** How long nodes took, and how far they are from another program: of those that are known. */
export interface Profile {
  seconds: Record<string, number>;
  errors: Record<string, number>;
}

/** Of two programs side by side: what a node is to the other program. */
export const SAME = 0, CHANGED = 1, ONLY_HERE = 2;

interface RawProgram {
  label: string;
  stage: number;
  method: string;
  columns: Columns;
  graphs: GraphInfo[];
  modules: [number, number, number][];
  origins: [number, number][][];
  symbols: SymbolInfo[];
  memory: Memory;
  links?: number[];
  kernels?: Record<string, string[]>;
  changes?: number[];
  profile?: Profile;
}

interface RawPage {
  version: number;
  diff?: boolean;
  title: string;
  methods: string[];
  stages: string[];
  programs: RawProgram[];
  strings: string[];
  source: {
    files: { path: string; lines: Record<string, string> }[];
    frames: [number, number, string, string][];
    stacks: number[][];
  };
}

export interface Node {
  id: number;
  name: string;
  kind: Kind;
  target: string;
  /** The operator without its path: "convolution". */
  short: string;
  type: string;
  call: string;
  module: number;
  stack: number;
  graph: number;
  inputs: number[];
  users: number[];
  bytes: number;
  origin: number;
  note: string;
}

export interface Module {
  id: number;
  parent: number;
  path: string;
  kind: string;
}

export interface Frame {
  file: string;
  line: number;
  func: string;
  code: string;
  around: [number, string][];
}

export interface Program {
  index: number;
  label: string;
  stage: number;
  method: string;
  nodes: Node[];
  graphs: GraphInfo[];
  modules: Module[];
  origins: { name: string; target: string }[][];
  symbols: SymbolInfo[];
  memory: Memory;
  /** For each node that of the stage before which it comes from. */
  links: number[] | null;
  /** Of an executable: the kernels that compute a node. */
  kernels: Record<string, string[]> | null;
  changes: number[] | null;
  profile: Profile | null;
}

export interface Page {
  /** Are the stages two programs, and their differences asked for? */
  diff: boolean;
  title: string;
  methods: string[];
  stages: string[];
  programs: Program[];
  frames(stack: number): Frame[];
}

/** "torch.ops.aten.add.Tensor" → "add", "aten::add.out" → "add", "math.floor" → "floor". */
export function shortTarget(target: string): string {
  if (target.includes("::")) return target.replace(/^.*::/, "").split(".")[0]!;
  const operator = /^(?:lostwax|torch)\.ops\.(?:edge\.)?[^.]+\.([^.]+)/.exec(target);
  return operator ? operator[1]! : target.split(".").at(-1)!;
}

function readProgram(raw: RawProgram, index: number, strings: string[]): Program {
  const c = raw.columns;
  const nodes: Node[] = c.name.map((name, id) => {
    const target = strings[c.target[id]!]!;
    return {
      id, name, target,
      kind: KINDS[c.kind[id]!]!,
      short: shortTarget(target),
      type: strings[c.type[id]!]!,
      call: strings[c.call[id]!]!,
      module: c.module[id]!,
      stack: c.stack[id]!,
      graph: c.graph[id]!,
      inputs: c.inputs[id]!,
      users: [],
      bytes: c.bytes[id]!,
      origin: c.origin[id]!,
      note: strings[c.note[id]!]!,
    };
  });
  for (const node of nodes) for (const i of node.inputs) nodes[i]!.users.push(node.id);
  return {
    index,
    label: raw.label,
    stage: raw.stage,
    method: raw.method,
    nodes,
    graphs: raw.graphs,
    modules: raw.modules.map(([parent, path, kind], id) => ({
      id, parent, path: strings[path]!, kind: strings[kind]!,
    })),
    origins: raw.origins.map((each) =>
      each.map(([name, target]) => ({ name: strings[name]!, target: strings[target]! })),
    ),
    symbols: raw.symbols,
    memory: raw.memory,
    links: raw.links ?? null,
    kernels: raw.kernels ?? null,
    changes: raw.changes ?? null,
    profile: raw.profile ?? null,
  };
}

export function readPage(text: string): Page {
  const raw = JSON.parse(text) as RawPage;
  const { files, frames, stacks } = raw.source;
  return {
    diff: raw.diff ?? false,
    title: raw.title,
    methods: raw.methods,
    stages: raw.stages,
    programs: raw.programs.map((p, i) => readProgram(p, i, raw.strings)),
    frames: (stack) =>
      (stacks[stack] ?? []).map((at) => {
        const [file, line, func, code] = frames[at]!;
        const lines = files[file]!.lines;
        const around: [number, string][] = [];
        for (let i = line - 4; i <= line + 4; i++) {
          const found = lines[i];
          if (found !== undefined) around.push([i, found]);
        }
        return { file: files[file]!.path, line, func, code, around };
      }),
  };
}

/** The nodes of another stage that are what a node is here: its origins, or what became of it. */
export function counterparts(page: Page, from: Program, node: number, to: Program): number[] {
  if (from === to) return [node];
  const step = from.stage < to.stage ? 1 : -1;
  let here: number[] = [node];
  for (let stage = from.stage; stage !== to.stage; stage += step) {
    const later = page.programs.find((p) => p.method === from.method && p.stage === stage + (step > 0 ? 1 : 0));
    const links = later?.links;
    if (!links) return [];
    if (step < 0) here = [...new Set(here.map((n) => links[n] ?? -1).filter((n) => n >= 0))];
    else {
      const wanted = new Set(here);
      here = [];
      links.forEach((origin, at) => {
        if (wanted.has(origin)) here.push(at);
      });
    }
  }
  return here;
}

const UNITS = ["B", "KB", "MB", "GB", "TB"];

export function showBytes(bytes: number): string {
  let value = bytes, unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function showRange(symbol: SymbolInfo): string {
  return `${symbol.lo ?? "−∞"} … ${symbol.hi ?? "∞"}`;
}

export function showSeconds(seconds: number): string {
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(2)} ms` : `${(seconds * 1e6).toFixed(1)} µs`;
}
