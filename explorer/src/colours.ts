// What the colours of boxes say: what operators are for, who computes them, their dtype, their size; how
// they differ from another program; how long they took, how wrong they are.

import { CHANGED, ONLY_HERE, type Program } from "./data";
import { categoryOf, wheel } from "./theme";
import type { Item } from "./tree";

export type ColourBy = "operators" | "delegates" | "dtypes" | "memory" | "differences" | "latency" | "errors";

export interface Colours {
  of(item: Item): string | null;
  /** The colours of what is inside of a folded group, with how much there is of each. */
  parts?(item: Item): [string, number][];
  legend: [string, string][];
}

export function choicesFor(program: Program): ColourBy[] {
  const choices: ColourBy[] = ["operators", "dtypes", "memory"];
  if (program.nodes.some((n) => n.kind === "delegate")) choices.unshift("delegates");
  if (Object.keys(program.profile?.errors ?? {}).length) choices.unshift("errors");
  if (Object.keys(program.profile?.seconds ?? {}).length) choices.unshift("latency");
  if (program.changes) choices.unshift("differences");
  return choices;
}

export function coloursBy(by: ColourBy, program: Program): Colours {
  if (by === "delegates") return byDelegates(program);
  if (by === "dtypes") return byDtypes(program);
  if (by === "memory") return byMemory(program);
  if (by === "differences") return byDifferences(program);
  if (by === "latency") return byLatency(program);
  if (by === "errors") return byErrors(program);
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
  const parts = countInside((each) => (each.node && (each.node.kind === "operator" || (each.node.kind === "delegate" && !each.children.length)) ? of(each) : null));
  return { of, parts, legend: [...backends.map((b): [string, string] => [b, hue(b)]), ["the runtime's kernels", LEFT]] };
}

/** For a group, how many boxes inside have each colour. */
function countInside(of: (item: Item) => string | null): (item: Item) => [string, number][] {
  const known = new WeakMap<Item, [string, number][]>();
  return (item) => {
    let found = known.get(item);
    if (!found) {
      const counts = new Map<string, number>();
      const walk = (each: Item): void => {
        const colour = of(each);
        if (colour) counts.set(colour, (counts.get(colour) ?? 0) + 1);
        each.children.forEach(walk);
      };
      walk(item);
      known.set(item, (found = [...counts]));
    }
    return found;
  };
}

const GONE = "#e03131", NEW = "#2f9e44", OTHER = "#f08c00";

function byDifferences(program: Program): Colours {
  const only = program.stage === 0 ? GONE : NEW;
  const of = (item: Item): string | null => {
    const change = item.node ? program.changes?.[item.node.id] : undefined;
    return change === ONLY_HERE ? only : change === CHANGED ? OTHER : null;
  };
  const legend: [string, string][] = [["only in the first", GONE], ["only in the second", NEW], ["in both, changed", OTHER]];
  return { of, parts: countInside(of), legend };
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

/** Colours by a number of each node, which groups have, too: of those inside. */
function byHeat(values: Record<string, number>, join: (a: number, b: number) => number, limits: number[], names: string[]): Colours {
  const known = new WeakMap<Item, number>();
  const valueOf = (item: Item): number => {
    let found = known.get(item);
    if (found === undefined) {
      found = item.children.reduce((sum, each) => join(sum, valueOf(each)), (item.node && values[item.node.id]) ?? 0);
      known.set(item, found);
    }
    return found;
  };
  return {
    of: (item) => {
      const value = item.isOpen && item.children.length ? 0 : valueOf(item);
      return value > 0 ? HEAT[limits.filter((limit) => value >= limit).length]! : null;
    },
    legend: names.map((name, i) => [name, HEAT[i]!]),
  };
}

function byLatency(program: Program): Colours {
  const { seconds } = program.profile!;
  const total = Object.values(seconds).reduce((a, b) => a + b, 0);
  return byHeat(seconds, (a, b) => a + b, [0.01, 0.05, 0.2].map((part) => part * total), ["< 1% of the time", "< 5%", "< 20%", "more"]);
}

function byErrors(program: Program): Colours {
  return byHeat(program.profile!.errors, Math.max, [1e-5, 1e-3, 1e-1], ["error < 1e-5", "< 1e-3", "< 0.1", "more"]);
}
