// Where things are drawn. Each open group is laid out by itself, when it is first needed; a closed one
// is a box. Opening a group lays out that one and those around it.

import dagre from "@dagrejs/dagre";
import type { Item, Tree } from "./tree";

export interface Point {
  x: number;
  y: number;
}

export interface Size {
  w: number;
  h: number;
}

export type Box = Point & Size;

/** What goes from one child of a group to another; null stands for what is outside. */
export interface Link {
  from: Item | null;
  to: Item | null;
  values: Set<number>;
}

export interface Wire extends Link {
  points: Point[];
  /** Does it go too far to be drawn as a line, unless somebody asks for it? */
  isLong: boolean;
}

/** What comes from afar, told in words above the one that reads it. */
export interface Stub extends Point {
  to: Item;
  wires: Wire[];
}

export interface Layout extends Size {
  /** Where each child begins, within the group. */
  at: Map<Item, Point>;
  wires: Wire[];
  stubs: Stub[];
  /** Where edges come in at the top and go out at the bottom, from the left. */
  inX: number;
  outX: number;
}

export const HEADER = 34;
const PAD = 18;
const NODE_HEIGHT = 40;
const GROUP_HEIGHT = 50;
const RANK_GAP = 38, GAP = 26;
/** How far lines stay from the edge of their group: half of what is written along them. */
const EDGE = 50;
/** How many ranks all lines of a group together may pass: the layout takes time for each. */
const MOST_PASSED = 120;
const FEWEST_FAR = 4;
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
    const isRoot = group.role === "root";
    const links = this.listLinks(group);
    const placed = stack(group.children, links, (c) => this.size(c)) ?? arrange(group.children, links, (c) => this.size(c));
    const least = isRoot ? 0 : boxSize(group).w + 40;
    const w = Math.max(placed.w + 2 * PAD, least);
    const dx = (w - placed.w) / 2, dy = isRoot ? 0 : HEADER + 6;
    const h = placed.h + dy + (isRoot ? 0 : PAD);
    const at = new Map<Item, Point>();
    for (const [child, p] of placed.at) at.set(child, { x: p.x + dx, y: p.y + dy });
    const inX = placed.inX + dx, outX = placed.outX + dx;
    const titleEnd = 28 + textWidth(group.label, `600 13px ${FONT}`) + textWidth(group.sub || group.node?.name || "", `11px ${FONT}`);
    const wires = links.map((link): Wire => {
      const bends = placed.bends.get(link)?.map((p) => ({ x: p.x + dx, y: p.y + dy }));
      const first = link.from ? this.anchor(link.from, at, "out") : { x: inX, y: inX < titleEnd ? HEADER - 4 : 0 };
      const last = link.to ? this.anchor(link.to, at, "in") : { x: outX, y: h };
      return { ...link, isLong: !bends, points: [first, ...(bends ?? []), last] };
    });
    return { w, h, at, wires, stubs: listStubs(wires), inX, outX };
  }

  private listLinks(group: Item): Link[] {
    const links: Link[] = [];
    for (const edge of group.edges.values()) links.push({ from: edge.from, to: edge.to, values: edge.values });
    if (group.role === "root") return links;
    for (const [child, values] of group.ins) links.push({ from: null, to: child, values });
    for (const [child, values] of group.outs) links.push({ from: child, to: null, values });
    return links;
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
  place(item: Item): Box | null {
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

const sizes = new WeakMap<Item, Size>();

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

// ---- where the children of a group lie

interface Placed extends Size {
  at: Map<Item, Point>;
  /** The points between the ends of each line that is drawn. */
  bends: Map<Link, Point[]>;
  inX: number;
  outX: number;
}

type SizeOf = (item: Item) => Size;

/** Children that follow each other lie below each other; null if they do not. What many of them read
 * from outside, as the layers of a transformer do, is then told in words. */
function stack(children: Item[], links: Link[], sizeOf: SizeOf): Placed | null {
  const place = new Map(children.map((child, i) => [child, i]));
  const near: Link[] = [];
  for (const link of links) {
    const a = link.from ? place.get(link.from)! : -1;
    const b = link.to ? place.get(link.to)! : children.length;
    if (b === a + 1) near.push(link);
    else if (link.from) return null;
  }
  const far = links.length - near.length;
  if (far > 0 && (far < FEWEST_FAR || far < children.length / 2)) return null;
  if (near.filter((l) => l.from && l.to).length < children.length - 1) return null;
  const sizes = children.map(sizeOf);
  const w = sizes.reduce((most, s) => Math.max(most, s.w), 0);
  const at = new Map<Item, Point>();
  const hasIn = links.some((l) => !l.from);
  let y = hasIn ? RANK_GAP : 0;
  children.forEach((child, i) => {
    at.set(child, { x: (w - sizes[i]!.w) / 2, y });
    y += sizes[i]!.h + RANK_GAP;
  });
  const h = links.some((l) => !l.to) ? y - 8 : y - RANK_GAP;
  return { w, h, at, bends: new Map(near.map((l) => [l, []])), inX: w / 2, outX: w / 2 };
}

/** By places in the lists of children and links, so that what is alike is laid out once: the layers of a
 * transformer, say. */
interface Arranged extends Size {
  at: Point[];
  bends: (Point[] | null)[];
  inX: number;
  outX: number;
}

const arranged = new Map<string, Arranged>();

function arrange(children: Item[], links: Link[], sizeOf: SizeOf): Placed {
  const sizes = children.map(sizeOf);
  const place = new Map(children.map((child, i) => [child, i]));
  const ends = links.map(({ from, to }) => [from ? place.get(from)! : -1, to ? place.get(to)! : -2] as const);
  const key = `${sizes.map((s) => `${s.w},${s.h}`).join(" ")}|${ends.join(" ")}`;
  let found = arranged.get(key);
  if (!found) {
    const drawn = chooseDrawn(children, links);
    found = arrangeByDagre(sizes, ends, links.map((link) => drawn.has(link)));
    arranged.set(key, found);
  }
  const { w, h, at, bends, inX, outX } = found;
  return {
    w, h, inX, outX,
    at: new Map(children.map((child, i) => [child, at[i]!])),
    bends: new Map(links.flatMap((link, i) => (bends[i] ? [[link, bends[i]] as const] : []))),
  };
}

function arrangeByDagre(sizes: Size[], ends: (readonly [number, number])[], drawn: boolean[]): Arranged {
  const g = new dagre.graphlib.Graph({ multigraph: false });
  const many = sizes.length > 60;
  g.setGraph({ rankdir: "TB", nodesep: GAP, ranksep: RANK_GAP, edgesep: 12, ranker: many ? "tight-tree" : "network-simplex" });
  g.setDefaultEdgeLabel(() => ({}));
  const joined = new Set(ends.flatMap((pair, i) => (drawn[i] ? pair : [])));
  const alone = new Set(sizes.map((_, i) => i).filter((i) => !joined.has(i)));
  sizes.forEach(({ w, h }, i) => alone.has(i) || g.setNode(String(i), { width: w, height: h }));
  const name = (end: number): string => (end === -1 ? IN : end === -2 ? OUT : String(end));
  ends.forEach(([from, to], i) => {
    if (!drawn[i]) return;
    for (const end of [from, to]) if (end < 0 && !g.hasNode(name(end))) g.setNode(name(end), { width: 1, height: 1 });
    g.setEdge(name(from), name(to), { weight: from >= 0 && to >= 0 ? 2 : 1 });
  });
  // What comes in comes from the top, and what goes out goes to the bottom, past all boxes: without
  // this, dagre begins a line beside the box that reads it, and it would cross those above.
  const hasIn = g.hasNode(IN), hasOut = g.hasNode(OUT);
  for (const i of many ? [] : joined) {
    if (i < 0) continue;
    if (hasIn && g.inEdges(String(i))?.length === 0) g.setEdge(IN, String(i), { weight: 0 });
    if (hasOut && g.outEdges(String(i))?.length === 0) g.setEdge(String(i), OUT, { weight: 0 });
  }
  if (alone.size < sizes.length) dagre.layout(g);
  const { width = 0, height = 0 } = g.graph() as { width?: number; height?: number };
  const bends = ends.map(([from, to], i): Point[] | null => {
    if (!drawn[i]) return null;
    const edge = g.edge(name(from), name(to)) as { points?: Point[] } | undefined;
    return (edge?.points ?? []).slice(1, -1);
  });
  // The size that dagre tells is that of the boxes: lines that go around them may leave it.
  const xs = bends.flatMap((points) => points?.map((p) => p.x) ?? []);
  const left = xs.reduce((least, x) => Math.min(least, x - EDGE), 0);
  const right = xs.reduce((most, x) => Math.max(most, x + EDGE), width);
  const at = sizes.map(({ w, h }, i) => {
    const { x, y } = alone.has(i) ? { x: 0, y: 0 } : (g.node(String(i)) as Point);
    return { x: x - w / 2 - left, y: y - h / 2 };
  });
  const found: Arranged = {
    w: right - left,
    h: height,
    at,
    bends: bends.map((points) => points && points.map(({ x, y }) => ({ x: x - left, y }))),
    inX: (g.hasNode(IN) ? (g.node(IN).x as number) : width / 2) - left,
    outX: (g.hasNode(OUT) ? (g.node(OUT).x as number) : width / 2) - left,
  };
  addColumns(found, sizes, alone);
  return found;
}

/** Boxes without lines lie in columns beside the others, about as tall as these. */
function addColumns(found: Arranged, sizes: Size[], alone: Set<number>): void {
  const area = [...alone].reduce((sum, i) => sum + (sizes[i]!.w + GAP) * (sizes[i]!.h + GAP), 0);
  const most = Math.max(found.h, Math.sqrt(area));
  let x = alone.size < sizes.length ? found.w + GAP : 0, y = 0, wide = 0;
  for (const i of alone) {
    const { w, h } = sizes[i]!;
    if (y > 0 && y + h > most) {
      x += wide + GAP;
      y = wide = 0;
    }
    found.at[i] = { x, y };
    y += h + GAP;
    wide = Math.max(wide, w);
    found.w = Math.max(found.w, x + w);
    found.h = Math.max(found.h, y - GAP);
  }
}

/** The links that are drawn as lines: all, unless they pass too many ranks; then the shorter ones. */
function chooseDrawn(children: Item[], links: Link[]): Set<Link> {
  const before = new Map<Item, Item[]>(children.map((c) => [c, []]));
  for (const { from, to } of links) if (from && to && from.order < to.order) before.get(to)!.push(from);
  const rank = new Map<Item, number>();
  let last = 0;
  for (const child of [...children].sort((a, b) => a.order - b.order)) {
    const found = before.get(child)!.reduce((most, each) => Math.max(most, (rank.get(each) ?? 0) + 1), 0);
    rank.set(child, found);
    last = Math.max(last, found);
  }
  const span = ({ from, to }: Link): number => Math.abs((to ? rank.get(to)! : last + 1) - (from ? rank.get(from)! : -1));
  const sorted = links.map((link) => ({ link, span: span(link) })).sort((a, b) => a.span - b.span);
  let passed = 0;
  return new Set(sorted.filter((each) => each.span <= 2 || (passed += each.span) <= MOST_PASSED).map((each) => each.link));
}

function listStubs(wires: Wire[]): Stub[] {
  const found = new Map<Item, Stub>();
  for (const wire of wires) {
    if (!wire.isLong || !wire.to) continue;
    const known = found.get(wire.to);
    const end = wire.points.at(-1)!;
    if (known) known.wires.push(wire);
    else found.set(wire.to, { to: wire.to, wires: [wire], x: end.x, y: end.y });
  }
  return [...found.values()];
}
