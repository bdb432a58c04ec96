// What the colours of boxes say: what operators are for, who computes them, their dtype, their size.

import type { Program } from "./data";
import { categoryOf, wheel } from "./theme";
import type { Item } from "./tree";

export type ColourBy = "operators" | "delegates" | "dtypes" | "memory";

export interface Colours {
  of(item: Item): string | null;
  /** The colours of what is inside of a folded group, with how much there is of each. */
  parts?(item: Item): [string, number][];
  legend: [string, string][];
}

export function choicesFor(program: Program): ColourBy[] {
  const choices: ColourBy[] = ["operators", "dtypes", "memory"];
  if (program.nodes.some((n) => n.kind === "delegate")) choices.unshift("delegates");
  return choices;
}

export function coloursBy(by: ColourBy, program: Program): Colours {
  if (by === "delegates") return byDelegates(program);
  if (by === "dtypes") return byDtypes(program);
  if (by === "memory") return byMemory(program);
  const legend = new Map<string, string>();
  for (const node of program.nodes) {
    if (node.kind === "operator" || node.kind === "control" || node.kind === "delegate") legend.set(categoryOf(node).name, categoryOf(node).hue);
  }
  const of = (item: Item): string | null => {
    if (item.node) return categoryOf(item.node).hue;
    // A module of one operator is that operator.
    const [only] = item.children;
    return item.children.length === 1 && only && !item.isOpen ? of(only) : null;
  };
  return { of, legend: [...legend] };
}

const LEFT = "#e03131";

function byDelegates(program: Program): Colours {
  const backends = [...new Set(program.graphs.map((g) => g.backend).filter((b): b is string => !!b))];
  for (const node of program.nodes) if (node.kind === "delegate" && !program.graphs.some((g) => g.owner === node.id) && !backends.includes(node.target)) backends.push(node.target);
  const hue = (name: string): string => wheel(backends.indexOf(name));
  const of = (item: Item): string | null => {
    if (item.backend) return hue(item.backend);
    if (item.node?.kind === "delegate") return hue(item.node.target);
    return item.role === "node" && item.node?.kind === "operator" ? LEFT : null;
  };
  const known = new Map<Item, [string, number][]>();
  const parts = (item: Item): [string, number][] => {
    let found = known.get(item);
    if (!found) {
      const counts = new Map<string, number>();
      const walk = (each: Item): void => {
        const colour = each.node && (each.node.kind === "operator" || (each.node.kind === "delegate" && !each.children.length)) ? of(each) : null;
        if (colour) counts.set(colour, (counts.get(colour) ?? 0) + 1);
        each.children.forEach(walk);
      };
      walk(item);
      known.set(item, (found = [...counts]));
    }
    return found;
  };
  return { of, parts, legend: [...backends.map((b): [string, string] => [b, hue(b)]), ["the runtime's kernels", LEFT]] };
}

function byDtypes(program: Program): Colours {
  const dtype = (type: string): string => /^\(?(\w+)\[/.exec(type)?.[1] ?? "";
  const known = [...new Set(program.nodes.map((n) => dtype(n.type)).filter(Boolean))];
  return {
    of: (item) => {
      const found = item.role === "node" ? dtype(item.node?.type ?? "") : "";
      return found ? wheel(known.indexOf(found) + 1) : null;
    },
    legend: known.map((name, i) => [name, wheel(i + 1)]),
  };
}

const HEAT = ["#ffe066", "#ffa94d", "#ff6b6b", "#c2255c"];

function byMemory(program: Program): Colours {
  const most = program.nodes.reduce((a, n) => (n.kind === "operator" ? Math.max(a, n.bytes) : a), 1);
  const parts = [0.01, 0.1, 0.4];
  return {
    of: (item) => {
      const bytes = item.role === "node" && item.node?.kind === "operator" ? item.node.bytes : 0;
      return bytes > 0 ? HEAT[parts.filter((p) => bytes / most > p).length]! : null;
    },
    legend: [["< 1% of the greatest", HEAT[0]!], ["< 10%", HEAT[1]!], ["< 40%", HEAT[2]!], ["the greatest", HEAT[3]!]],
  };
}
