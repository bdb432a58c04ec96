// Where things are drawn. Each open group is laid out by itself, when it is first needed; a closed one
// is a box. Opening a group lays out that one and those around it.

import dagre from "@dagrejs/dagre";
import type { Edge, Item, Tree } from "./tree";

export interface Point {
  x: number;
  y: number;
}

export interface Size {
  w: number;
  h: number;
}

export interface Wire {
  edge: Edge | null;
  /** For a wire to or from the outside: the child at its end, and what goes along it. */
  end: Item | null;
  values: Set<number>;
  points: Point[];
}

export interface Layout extends Size {
  /** Where each child begins, within the group. */
  at: Map<Item, Point>;
  wires: Wire[];
  /** Where edges come in at the top and go out at the bottom, from the left. */
  inX: number;
  outX: number;
}

export const HEADER = 34;
const PAD = 18;
const NODE_HEIGHT = 40;
const GROUP_HEIGHT = 50;
const IN = "in", OUT = "out";

let pen: CanvasRenderingContext2D | null = null;
const widths = new Map<string, number>();
export const FONT = `"Inter", system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif`;

export function textWidth(text: string, font: string): number {
  const key = font + text;
  let found = widths.get(key);
  if (found === undefined) {
    pen ??= document.createElement("canvas").getContext("2d")!;
    pen.font = font;
    found = pen.measureText(text).width;
    widths.set(key, found);
  }
  return found;
}

export class Layouts {
  private readonly known = new Map<Item, Layout>();

  constructor(private readonly tree: Tree) {}

  get root(): Layout {
    return this.of(this.tree.root);
  }

  size(item: Item): Size {
    if (item.isOpen && item.children.length) return this.of(item);
    return boxSize(item);
  }

  of(item: Item): Layout {
    let found = this.known.get(item);
    if (!found) this.known.set(item, (found = this.compute(item)));
    return found;
  }

  /** To be called when a group was opened or closed. */
  forget(item: Item): void {
    for (let each: Item | null = item; each; each = each.parent) this.known.delete(each);
  }

  private compute(group: Item): Layout {
    const g = new dagre.graphlib.Graph({ multigraph: false });
    const many = group.children.length > 100;
    g.setGraph({ rankdir: "TB", nodesep: 26, ranksep: 38, edgesep: 12, ranker: many ? "tight-tree" : "network-simplex" });
    g.setDefaultEdgeLabel(() => ({}));
    for (const child of group.children) {
      const { w, h } = this.size(child);
      g.setNode(String(child.id), { width: w, height: h });
    }
    for (const edge of group.edges.values()) g.setEdge(String(edge.from.id), String(edge.to.id), { weight: 2 });
    const isRoot = group.role === "root";
    if (!isRoot && group.ins.size) {
      g.setNode(IN, { width: 1, height: 1 });
      for (const child of group.ins.keys()) g.setEdge(IN, String(child.id), { weight: 1 });
    }
    if (!isRoot && group.outs.size) {
      g.setNode(OUT, { width: 1, height: 1 });
      for (const child of group.outs.keys()) g.setEdge(String(child.id), OUT, { weight: 1 });
    }
    dagre.layout(g);

    const { width = 0, height = 0 } = g.graph() as { width?: number; height?: number };
    const least = isRoot ? 0 : boxSize(group).w + 40;
    const w = Math.max(width + 2 * PAD, least);
    const top = isRoot ? 0 : HEADER;
    const dx = (w - width) / 2, dy = top + (isRoot ? 0 : 6);
    const at = new Map<Item, Point>();
    for (const child of group.children) {
      const n = g.node(String(child.id));
      at.set(child, { x: n.x - n.width / 2 + dx, y: n.y - n.height / 2 + dy });
    }
    const h = height + dy + (isRoot ? 0 : PAD);
    const inX = g.hasNode(IN) ? g.node(IN).x + dx : w / 2;
    const outX = g.hasNode(OUT) ? g.node(OUT).x + dx : w / 2;
    const titleEnd = 28 + textWidth(group.label, `600 13px ${FONT}`) + textWidth(group.sub || group.node?.name || "", `11px ${FONT}`);
    const wires: Wire[] = [];
    const wire = (from: string, to: string, edge: Edge | null, end: Item | null, values: Set<number>): void => {
      const found = g.edge(from, to) as { points?: Point[] } | undefined;
      if (!found?.points) return;
      const points = found.points.map((p) => ({ x: p.x + dx, y: p.y + dy }));
      const first = edge?.from ?? (from === IN ? null : end);
      const last = edge?.to ?? (to === OUT ? null : end);
      points[0] = first ? this.anchor(first, at, "out") : { x: inX, y: inX < titleEnd ? HEADER - 4 : 0 };
      points[points.length - 1] = last ? this.anchor(last, at, "in") : { x: outX, y: h };
      wires.push({ edge, end, values, points });
    };
    for (const edge of group.edges.values()) wire(String(edge.from.id), String(edge.to.id), edge, null, edge.values);
    if (!isRoot) {
      for (const [child, values] of group.ins) wire(IN, String(child.id), null, child, values);
      for (const [child, values] of group.outs) wire(String(child.id), OUT, null, child, values);
    }
    return { w, h, at, wires, inX, outX };
  }

  private anchor(item: Item, at: Map<Item, Point>, side: "in" | "out"): Point {
    const { x, y } = at.get(item)!;
    const { w, h } = this.size(item);
    const isOpen = item.isOpen && item.children.length > 0;
    const inner = isOpen ? this.of(item) : null;
    const dx = inner ? (side === "in" ? inner.inX : inner.outX) : w / 2;
    return { x: x + dx, y: side === "in" ? y : y + h };
  }

  /** Where an item lies in the whole drawing; null if it is inside of a folded one. */
  place(item: Item): (Point & Size) | null {
    let x = 0, y = 0;
    for (let each = item; each.parent; each = each.parent) {
      if (!each.parent.isOpen) return null;
      const p = this.of(each.parent).at.get(each)!;
      x += p.x;
      y += p.y;
    }
    return { x, y, ...this.size(item) };
  }
}

export function subText(item: Item): string {
  if (item.role === "node") return item.node?.type ?? "";
  const ops = `${item.count} op${item.count === 1 ? "" : "s"}`;
  if (item.role === "call" && !item.backend) return item.node?.type || ops;
  return item.sub ? `${item.sub} · ${ops}` : ops;
}

const sizes = new Map<Item, Size>();

function boxSize(item: Item): Size {
  let found = sizes.get(item);
  if (!found) {
    const title = textWidth(item.label, `600 13px ${FONT}`);
    const sub = textWidth(clip(subText(item), 46), `11px ${FONT}`);
    const isGroup = item.children.length > 0;
    const w = Math.ceil(Math.max(title + (isGroup ? 26 : 0), sub, 46) + 30);
    found = { w: Math.min(w, 330), h: isGroup ? GROUP_HEIGHT : NODE_HEIGHT };
    sizes.set(item, found);
  }
  return found;
}

export function clip(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
