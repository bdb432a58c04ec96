// Draws what is unfolded of a program, with any pen: that of a canvas, or one that writes SVG. Only what
// is in sight is drawn, and only as much of it as can be read at this scale.

import type { Program } from "./data";
import { type Box, clip, FONT, HEADER, type Layouts, type Point, type Stub, subText, textWidth, type Wire } from "./layout";
import type { Palette } from "./theme";
import type { Item, Tree } from "./tree";

/** What of a canvas the drawing needs. */
export type Pen = Pick<
  CanvasRenderingContext2D,
  | "fillStyle" | "strokeStyle" | "lineWidth" | "globalAlpha" | "font" | "textAlign" | "textBaseline"
  | "save" | "restore" | "translate" | "beginPath" | "moveTo" | "lineTo" | "bezierCurveTo" | "roundRect"
  | "fill" | "stroke" | "fillRect" | "fillText" | "setLineDash"
>;

export interface Scene {
  program: Program;
  tree: Tree;
  layouts: Layouts;
  palette: Palette;
  selected: Item | null;
  hovered: Item | null;
  hoveredWire: Wire | null;
  /** The values that the selected node reads and makes. */
  near: Set<number>;
  /** How many marked nodes are in each item. */
  marksIn: Map<Item, number>;
  colour(item: Item): string | null;
  parts: ((item: Item) => [string, number][]) | null;
}

const TITLE = `600 13px ${FONT}`, SMALL = `11px ${FONT}`;

export class Painter {
  private labels: Box[] = [];

  constructor(private readonly scene: Scene, private readonly pen: Pen, private readonly k: number) {}

  paint(sight: Box): void {
    this.drawInside(this.scene.tree.root, 0, 0, sight);
  }

  private drawInside(group: Item, x: number, y: number, sight: Box): void {
    const layout = this.scene.layouts.of(group);
    const { pen } = this;
    pen.save();
    pen.translate(x, y);
    const local = { ...sight, x: sight.x - x, y: sight.y - y };
    const near = layout.wires.filter((wire) => touches(bounds(wire.points), local));
    for (const wire of near) if (!wire.isLong) this.drawWire(wire, false);
    if (this.k > 0.3) for (const stub of layout.stubs) this.drawStub(stub, local);
    for (const wire of near) if (this.isLit(wire)) this.drawWire(wire, true);
    // What labels stay away from: the sides of the frame, its title, and all boxes.
    const boxes: Box[] = [{ x: -1e9, y: 0, w: 1e9, h: layout.h }, { x: layout.w, y: 0, w: 1e9, h: layout.h }];
    if (group.parent) boxes.push({ x: 0, y: 0, w: layout.w, h: HEADER - 6 });
    for (const [child, at] of layout.at) {
      const { w, h } = this.scene.layouts.size(child);
      const box = { ...at, w, h };
      if (!touches(box, local)) continue;
      boxes.push(box);
      if (child.isOpen && child.children.length) {
        this.drawFrame(child, box);
        this.drawInside(child, at.x, at.y, local);
      } else this.drawBox(child, box);
    }
    if (this.k > 0.42) for (const wire of near) if (!wire.isLong) this.drawLabel(wire, x, y, local, boxes);
    pen.restore();
  }

  private isLit(wire: Wire): boolean {
    if (wire === this.scene.hoveredWire) return true;
    const { selected } = this.scene;
    if (!selected) return false;
    if (wire.from === selected || wire.to === selected) return true;
    if (selected.role !== "node" || !selected.node) return false;
    for (const value of wire.values) {
      if (!this.scene.near.has(value)) continue;
      const isOut = this.scene.tree.source(value) === selected.node.id;
      if (isOut) return true;
      for (let item: Item | null = selected; item; item = item.parent) if (item === wire.to) return true;
      if (!wire.to && wire.from && this.isInside(value, wire.from)) return true;
    }
    return false;
  }

  private isInside(value: number, group: Item): boolean {
    for (let item: Item | null = this.scene.tree.leaf[this.scene.tree.source(value)] ?? null; item; item = item.parent) {
      if (item === group) return true;
    }
    return false;
  }

  private drawWire(wire: Wire, isLit: boolean): void {
    const { pen } = this, { palette } = this.scene;
    const { points } = wire;
    pen.strokeStyle = isLit ? palette.accent : palette.wire;
    pen.lineWidth = Math.max(isLit ? 2 : 1.2, (isLit ? 1.6 : 1) / this.k); // never thinner than the screen shows
    pen.beginPath();
    trace(pen, points);
    pen.stroke();
    if (this.k < 0.3) return;
    const end = points.at(-1)!;
    pen.fillStyle = isLit ? palette.accent : palette.wire;
    if (wire.to) {
      pen.beginPath();
      pen.moveTo(end.x, end.y);
      pen.lineTo(end.x - 4, end.y - 7);
      pen.lineTo(end.x + 4, end.y - 7);
      pen.fill();
    }
  }

  private drawStub(stub: Stub, local: Box): void {
    const x = stub.x + 16, y = stub.y;
    if (x < local.x - 200 || x > local.x + local.w || y < local.y || y > local.y + local.h + 30) return;
    const { pen } = this, { palette } = this.scene;
    const lit = stub.wires.some((wire) => this.isLit(wire));
    const names = [...new Set(stub.wires.flatMap((w) => [...w.values].map((v) => this.scene.program.nodes[v]!.name)))];
    const text = names.length > 2 ? `${names.length} values from above` : names.join(", ");
    pen.strokeStyle = pen.fillStyle = lit ? palette.accent : palette.wire;
    pen.lineWidth = 1.2;
    pen.setLineDash([2, 2]);
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x, y - 13);
    pen.stroke();
    pen.setLineDash([]);
    pen.font = `italic 10px ${FONT}`;
    pen.fillStyle = lit ? palette.accent : palette.muted;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(clip(text, 28), x + 5, y - 9);
  }

  private wireText(wire: Wire): string {
    const { nodes } = this.scene.program;
    const types = new Set([...wire.values].map((v) => nodes[v]!.type).filter(Boolean));
    if (types.size === 0) return "";
    const [first] = types;
    return types.size > 1 ? `${types.size} values` : wire.values.size > 1 ? `${wire.values.size} × ${first}` : first!;
  }

  /** The type along a line, where it covers no box and stays in the frame; else it is left out. */
  private drawLabel(wire: Wire, x: number, y: number, local: Box, boxes: Box[]): void {
    if (!wire.to) return;
    const text = clip(this.wireText(wire), 40);
    if (!text) return;
    const { pen } = this, { palette } = this.scene;
    const font = `10px ${FONT}`;
    const w = textWidth(text, font) + 8;
    const around = (p: Point, dx: number, dy: number): Box => ({ x: p.x + dx - w / 2, y: p.y + dy - 7, w, h: 14 });
    const isFree = (p: Point): boolean => {
      const near = around(p, 0, 0), far = around(p, x, y);
      return touches(near, local) && !boxes.some((b) => touches(b, near)) && !this.labels.some((b) => touches(b, far));
    };
    const between = wire.points.slice(1).map((q, i) => middle([wire.points[i]!, q]));
    const p = [middle(wire.points), ...between].find(isFree);
    if (!p) return;
    this.labels.push(around(p, x, y));
    pen.font = font;
    pen.globalAlpha = 0.88;
    pen.fillStyle = palette.paper;
    round(pen, p.x - w / 2, p.y - 7, w, 14, 4);
    pen.fill();
    pen.globalAlpha = 1;
    pen.fillStyle = this.isLit(wire) ? palette.accent : palette.muted;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(text, p.x, p.y + 0.5);
  }

  /** Is something marked that is shown by this item? */
  private isMarked(item: Item): boolean {
    return this.scene.marksIn.has(item) && !(item.isOpen && item.children.length);
  }

  private border(item: Item): [string, number] {
    const { palette } = this.scene;
    const scale = Math.max(1, 0.6 / this.k);
    if (item === this.scene.selected) return [palette.accent, 2.4 * scale];
    if (this.isMarked(item)) return [palette.mark, 2 * scale];
    if (item === this.scene.hovered) return [palette.muted, 1.4 * scale];
    return [palette.line, scale];
  }

  private drawFrame(item: Item, box: Box): void {
    const { pen } = this, { palette } = this.scene;
    const [line, width] = this.border(item);
    pen.fillStyle = palette.group[item.depth % 2]!;
    round(pen, box.x, box.y, box.w, box.h, 12);
    pen.fill();
    const colour = this.scene.colour(item);
    if (colour) {
      pen.globalAlpha = palette.isDark ? 0.16 : 0.1;
      pen.fillStyle = colour;
      pen.fill();
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = item === this.scene.selected ? line : colour ?? line;
    pen.lineWidth = width;
    pen.stroke();
    if (this.k < 0.16) return;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.font = TITLE;
    pen.fillStyle = palette.ink;
    const room = box.w - 60;
    const label = fitText(item.label, TITLE, room);
    pen.fillText(label, box.x + 14, box.y + 18);
    const used = textWidth(label, TITLE);
    const sub = fitText(item.sub || item.node?.name || "", SMALL, room - used - 8);
    pen.font = SMALL;
    pen.fillStyle = palette.muted;
    pen.fillText(sub, box.x + 22 + used, box.y + 18.5);
    this.drawHandle(box.x + box.w - 20, box.y + 18, true);
  }

  /** A strip at the bottom of a folded group: who computes what is inside. */
  private drawParts(parts: [string, number][], box: Box): void {
    const { pen } = this;
    const total = parts.reduce((sum, [, count]) => sum + count, 0);
    let x = box.x + 12;
    for (const [colour, count] of parts) {
      const w = ((box.w - 24) * count) / total;
      pen.fillStyle = colour;
      pen.fillRect(x, box.y + box.h - 7, w, 4);
      x += w;
    }
  }

  private drawHandle(x: number, y: number, isOpen: boolean): void {
    const { pen } = this, { palette } = this.scene;
    pen.strokeStyle = palette.muted;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(x - 4, y);
    pen.lineTo(x + 4, y);
    if (!isOpen) {
      pen.moveTo(x, y - 4);
      pen.lineTo(x, y + 4);
    }
    pen.stroke();
  }

  private drawBox(item: Item, box: Box): void {
    const { pen, k } = this, { palette } = this.scene;
    const isGroup = item.children.length > 0;
    const [line, width] = this.border(item);
    const colour = this.scene.colour(item);
    const radius = item.node?.kind === "input" || item.node?.kind === "output" ? box.h / 2 : 9;
    if (isGroup && k > 0.2) {
      pen.fillStyle = palette.card;
      pen.strokeStyle = palette.line;
      pen.lineWidth = 1;
      round(pen, box.x + 5, box.y + 4, box.w - 10, box.h, 9);
      pen.fill();
      pen.stroke();
    }
    pen.fillStyle = palette.card;
    round(pen, box.x, box.y, box.w, box.h, radius);
    pen.fill();
    if (colour) {
      // Where nothing can be read, the colour tells what it is.
      pen.globalAlpha = k < 0.22 ? 0.6 : palette.isDark ? 0.24 : 0.13;
      pen.fillStyle = colour;
      pen.fill();
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = line === palette.line && colour ? colour : line;
    pen.lineWidth = width;
    pen.stroke();
    if (k < 0.22) return;
    const cx = box.x + box.w / 2 - (isGroup ? 8 : 0);
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.font = TITLE;
    pen.fillStyle = palette.ink;
    const sub = subText(item);
    const shows = sub && k > 0.34;
    pen.fillText(fitText(item.label, TITLE, roomFor(item, box.w)), cx, box.y + box.h / 2 - (shows ? 7.5 : 0));
    if (shows) {
      pen.font = SMALL;
      pen.fillStyle = palette.muted;
      pen.fillText(fitText(sub, SMALL, box.w - 20), box.x + box.w / 2, box.y + box.h / 2 + 9.5);
    }
    if (isGroup) this.drawHandle(box.x + box.w - 16, box.y + 16, false);
    if (isGroup && this.scene.parts && !colour) this.drawParts(this.scene.parts(item), box);
    const marks = isGroup ? this.scene.marksIn.get(item) : undefined;
    if (marks) {
      const text = String(marks), font = `600 10px ${FONT}`;
      const w = textWidth(text, font) + 10;
      pen.fillStyle = palette.mark;
      round(pen, box.x - 6, box.y - 8, w, 16, 8);
      pen.fill();
      pen.fillStyle = "#fff";
      pen.font = font;
      pen.fillText(text, box.x - 6 + w / 2, box.y);
    }
  }
}

// ---- geometry

function touches(a: Box, b: Box): boolean {
  return a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
}

const boundsOf = new WeakMap<Point[], Box>();

function bounds(points: Point[]): Box {
  let found = boundsOf.get(points);
  if (!found) {
    const xs = points.map((p) => p.x), ys = points.map((p) => p.y);
    const x = Math.min(...xs), y = Math.min(...ys);
    found = { x: x - 2, y: y - 2, w: Math.max(...xs) - x + 4, h: Math.max(...ys) - y + 4 };
    boundsOf.set(points, found);
  }
  return found;
}

function trace(pen: Pen, points: Point[]): void {
  pen.moveTo(points[0]!.x, points[0]!.y);
  for (let i = 1; i < points.length; i++) {
    const p = points[i - 1]!, q = points[i]!;
    const bend = (q.y - p.y) / 2;
    pen.bezierCurveTo(p.x, p.y + bend, q.x, q.y - bend, q.x, q.y);
  }
}

function middle(points: Point[]): Point {
  const at = Math.floor((points.length - 1) / 2);
  const p = points[at]!, q = points[at + 1] ?? p;
  if (points.length % 2) return p;
  return { x: (p.x + q.x) / 2, y: (p.y + q.y) / 2 };
}

function round(pen: Pen, x: number, y: number, w: number, h: number, r: number): void {
  pen.beginPath();
  pen.roundRect(x, y, w, h, Math.min(r, w / 2, h / 2));
}

function roomFor(item: Item, width: number): number {
  return width - (item.children.length ? 44 : 20);
}

/** Is a text of a box cut, so that it has to be shown in another way? */
export function isCut(item: Item, width: number): boolean {
  if (item.isOpen && item.children.length) return textWidth(item.label, TITLE) + textWidth(item.sub || item.node?.name || "", SMALL) > width - 68;
  return textWidth(item.label, TITLE) > roomFor(item, width) || textWidth(subText(item), SMALL) > width - 20;
}

function fitText(text: string, font: string, room: number): string {
  if (room <= 8) return "";
  if (textWidth(text, font) <= room) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (textWidth(`${text.slice(0, mid)}…`, font) <= room) low = mid;
    else high = mid - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}
