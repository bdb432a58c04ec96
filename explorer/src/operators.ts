// How often each operator is called.

import type { Node } from "./data";
import { categoryOf } from "./theme";

export interface Count {
  target: string;
  name: string;
  count: number;
  hue: string;
}

export function countOperators(nodes: Node[]): Count[] {
  const found = new Map<string, Count>();
  for (const node of nodes) {
    if (node.kind !== "operator" && node.kind !== "control" && node.kind !== "size" && node.kind !== "delegate") continue;
    const known = found.get(node.target);
    if (known) known.count++;
    else found.set(node.target, { target: node.target, name: nameOf(node), count: 1, hue: categoryOf(node).hue });
  }
  return [...found.values()].sort((a, b) => b.count - a.count || a.name.localeCompare(b.name));
}

/** The overload is told where there is another one. */
function nameOf(node: Node): string {
  const overload = /\.([^.]+)$/.exec(node.target)?.[1] ?? "";
  const isPlain = !overload || overload === "default" || overload === "out" || overload === node.short;
  return isPlain ? node.short : `${node.short}.${overload}`;
}
