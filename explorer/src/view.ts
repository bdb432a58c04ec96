// The drawing of one program on a canvas: only what is in sight is drawn, and only as much of it as
// can be read at this scale.

import type { Program } from "./data";
import { clip, FONT, HEADER, Layouts, type Point, type Size, type Stub, subText, textWidth, type Wire } from "./layout";
import { categoryOf, type Palette, readPalette } from "./theme";
import { type Item, Tree } from "./tree";

export interface Camera {
  x: number;
  y: number;
  k: number;
}

export interface ViewEvents {
  select(item: Item | null): void;
  hover(item: Item | null, wire: Wire | null, at: Point): void;
  activate(): void;
  folded(): void;
}

type Box = Point & Size;
const LEAST = 0.02, MOST = 3;
/** The room below that the tools take. */
const BELOW = 84;
/** How many milliseconds unfolding may take. */
const MOST_TIME = 150;

export class View {
  readonly canvas = document.createElement("canvas");
  tree: Tree;
  layouts: Layouts;
  camera: Camera = { x: 0, y: 0, k: 1 };
  selected: Item | null = null;
  /** Nodes that are marked: matches of a search, or counterparts of another stage. */
  marked = new Set<number>();
  colour: (item: Item) => string | null = (item) => (item.node ? categoryOf(item.node).hue : null);
  parts: ((item: Item) => [string, number][]) | null = null;
  private showAll = false;
  private palette: Palette = readPalette();
  private pen: CanvasRenderingContext2D;
  private hovered: Item | null = null;
  private hoveredWire: Wire | null = null;
  private near = new Set<number>();
  private isDirty = true;
  private tween: { from: Camera; to: Camera; start: number } | null = null;
  private labels: Box[] = [];
  private marksIn = new Map<Item, number>();
  private ratio = 1;

  constructor(public program: Program, private readonly events: ViewEvents) {
    this.pen = this.canvas.getContext("2d")!;
    this.canvas.className = "drawing";
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "The graph; the tree of modules beside it has the same");
    this.tree = new Tree(program, false);
    this.layouts = new Layouts(this.tree);
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    const tick = (now: number): void => {
      if (!this.canvas.isConnected && this.wasConnected) return;
      this.wasConnected ||= this.canvas.isConnected;
      this.step(now);
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  private wasConnected = false;

  // ---- what is shown

  setProgram(program: Program): void {
    this.program = program;
    this.rebuild();
    this.fit(false);
  }

  get showsAll(): boolean {
    return this.showAll;
  }

  setShowAll(showAll: boolean): void {
    this.showAll = showAll;
    const open = new Set(this.tree.items.filter((i) => i.isOpen).map((i) => i.role + i.path));
    this.rebuild();
    for (const item of this.tree.items) if (item.children.length && open.has(item.role + item.path)) item.isOpen = true;
    this.layouts = new Layouts(this.tree);
    this.redraw();
  }

  private rebuild(): void {
    this.tree = new Tree(this.program, this.showAll);
    this.layouts = new Layouts(this.tree);
    this.selected = this.hovered = this.hoveredWire = null;
    this.marked = new Set();
    this.near = new Set();
    this.countMarks();
    this.redraw();
  }

  refreshPalette(): void {
    this.palette = readPalette();
    this.redraw();
  }

  redraw(): void {
    this.isDirty = true;
  }

  // ---- folding

  toggle(item: Item): void {
    if (!item.children.length || item.role === "root") return;
    const before = this.layouts.place(item);
    item.isOpen = !item.isOpen;
    this.layouts.forget(item);
    const after = this.layouts.place(item);
    if (before && after) this.keep(before, after);
    this.redraw();
    this.events.folded();
  }

  /** Keeps the top of an item where it was on the screen. */
  private keep(before: Box, after: Box): void {
    const { k } = this.camera;
    this.tween = null;
    this.camera.x += (before.x + before.w / 2 - after.x - after.w / 2) * k;
    this.camera.y += (before.y - after.y) * k;
  }

  foldAll(): void {
    for (const item of this.tree.items) item.isOpen = item.role === "root";
    this.layouts = new Layouts(this.tree);
    this.fit(true);
  }

  /** Unfolds one level more of all that is shown, as much of it as takes no visible time. */
  unfoldLevel(): void {
    const shown: Item[] = [];
    const walk = (item: Item): void => {
      for (const child of item.children) {
        if (child.isOpen) walk(child);
        else if (child.children.length) shown.push(child);
      }
    };
    walk(this.tree.root);
    const start = performance.now();
    for (const item of shown) {
      if (performance.now() - start > MOST_TIME) break;
      item.isOpen = true;
      this.layouts.of(item);
      this.layouts.forget(item.parent!);
    }
    this.fit(true);
  }

  // ---- selection and marks

  select(item: Item | null, tell = true): void {
    this.selected = item;
    this.near = new Set();
    const { nodes } = this.program;
    const node = item && item.role === "node" ? item.node : null;
    if (node) {
      for (const i of node.inputs) this.near.add(i);
      const follow = (id: number): void => {
        this.near.add(id);
        for (const user of nodes[id]!.users) if (nodes[user]!.kind === "item" && !this.tree.leaf[user]) follow(user);
      };
      follow(node.id);
    }
    this.redraw();
    if (tell) this.events.select(item);
  }

  mark(nodes: Iterable<number>): void {
    this.marked = new Set(nodes);
    this.countMarks();
    this.redraw();
  }

  private countMarks(): void {
    this.marksIn = new Map();
    for (const id of this.marked) {
      const leaf = this.tree.leaf[this.tree.source(id)];
      for (let item: Item | null = leaf ?? null; item; item = item.parent) {
        this.marksIn.set(item, (this.marksIn.get(item) ?? 0) + 1);
      }
    }
  }

  /** Shows a node: unfolds what is around it, selects it, and moves there. */
  focusNode(id: number, tell = true): boolean {
    const item = this.tree.leaf[this.tree.source(id)];
    if (!item) return false;
    this.focusItem(item, tell);
    return true;
  }

  focusItem(item: Item, tell = true): void {
    if (this.tree.reveal(item)) this.layouts = this.keepLayouts(item);
    this.select(item, tell);
    const place = this.layouts.place(item);
    if (place) this.moveTo(place);
  }

  private keepLayouts(item: Item): Layouts {
    this.layouts.forget(item);
    return this.layouts;
  }

  // ---- the camera

  private get width(): number {
    return this.canvas.clientWidth;
  }

  private get height(): number {
    return this.canvas.clientHeight;
  }

  fit(smooth: boolean): void {
    const { w, h } = this.layouts.root;
    const k = Math.min(this.width / (w + 80), (this.height - BELOW) / (h + 48), 1.1);
    if (k < 0.35 && h > w) {
      // Too long to be read at once: begin at its top.
      const wide = Math.max(Math.min(this.width / (w + 80), 0.9), 0.3);
      this.go({ k: wide, x: (this.width - w * wide) / 2, y: 40 }, smooth);
      return;
    }
    this.go({ k, x: (this.width - w * k) / 2, y: (this.height - BELOW - h * k) / 2 }, smooth);
  }

  fitAll(): void {
    const { w, h } = this.layouts.root;
    const k = Math.max(Math.min(this.width / (w + 60), this.height / (h + 60), 1.2), LEAST);
    this.go({ k, x: (this.width - w * k) / 2, y: (this.height - h * k) / 2 }, true);
  }

  moveTo(box: Box): void {
    const fits = Math.min((this.width * 0.9) / box.w, (this.height * 0.9) / box.h, 1.2);
    const k = Math.max(Math.min(Math.max(this.camera.k, 0.7), fits), 0.08);
    const y = box.h * k > this.height * 0.8 ? 40 - box.y * k : this.height / 2 - (box.y + box.h / 2) * k;
    this.go({ k, x: this.width / 2 - (box.x + box.w / 2) * k, y }, true);
  }

  private go(to: Camera, smooth: boolean): void {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (smooth && !still) this.tween = { from: { ...this.camera }, to, start: performance.now() };
    else {
      this.tween = null;
      this.camera = to;
    }
    this.redraw();
  }

  zoom(factor: number, at: Point = { x: this.width / 2, y: this.height / 2 }): void {
    const k = Math.min(Math.max(this.camera.k * factor, LEAST), MOST);
    const f = k / this.camera.k;
    this.tween = null;
    this.camera = { k, x: at.x - (at.x - this.camera.x) * f, y: at.y - (at.y - this.camera.y) * f };
    this.redraw();
  }

  pan(dx: number, dy: number): void {
    this.tween = null;
    this.camera.x += dx;
    this.camera.y += dy;
    this.redraw();
  }

  private resize(): void {
    this.ratio = window.devicePixelRatio || 1;
    const w = Math.round(this.width * this.ratio), h = Math.round(this.height * this.ratio);
    if (!w || !h || (this.canvas.width === w && this.canvas.height === h)) return;
    const first = this.canvas.dataset["ready"] === undefined;
    this.canvas.width = w;
    this.canvas.height = h;
    this.canvas.dataset["ready"] = "1";
    if (first) this.fit(false);
    this.isDirty = true;
    this.step(performance.now());
  }

  private step(now: number): void {
    if (this.tween) {
      const t = Math.min((now - this.tween.start) / 260, 1);
      const e = 1 - (1 - t) ** 3;
      const { from, to } = this.tween;
      const mix = (a: number, b: number): number => a + (b - a) * e;
      // Along with the scale, so that the way there is straight.
      this.camera = { k: mix(from.k, to.k), x: mix(from.x, to.x), y: mix(from.y, to.y) };
      if (t === 1) this.tween = null;
      this.isDirty = true;
    }
    if (this.isDirty && this.canvas.width) {
      this.isDirty = false;
      this.draw();
    }
  }

  // ---- the mouse

  private toWorld(p: Point): Point {
    return { x: (p.x - this.camera.x) / this.camera.k, y: (p.y - this.camera.y) / this.camera.k };
  }

  /** The innermost item at a point of the screen. */
  itemAt(p: Point): Item | null {
    let { x, y } = this.toWorld(p);
    let item = this.tree.root;
    let found: Item | null = null;
    for (;;) {
      const inner = this.layouts.of(item);
      let next: Item | null = null;
      for (const [child, at] of inner.at) {
        const { w, h } = this.layouts.size(child);
        if (x >= at.x && x <= at.x + w && y >= at.y && y <= at.y + h) {
          next = child;
          x -= at.x;
          y -= at.y;
          break;
        }
      }
      if (!next) return found;
      found = next;
      if (!next.isOpen || !next.children.length) return found;
      item = next;
    }
  }

  private wireAt(p: Point): Wire | null {
    let { x, y } = this.toWorld(p);
    const reach = 6 / this.camera.k;
    for (let item: Item | null = this.tree.root; item; ) {
      const layout = this.layouts.of(item);
      for (const wire of layout.wires) {
        if (wire.isLong) continue;
        for (let i = 1; i < wire.points.length; i++) {
          if (distance({ x, y }, wire.points[i - 1]!, wire.points[i]!) < reach) return wire;
        }
      }
      let next: Item | null = null;
      for (const [child, at] of layout.at) {
        const { w, h } = this.layouts.size(child);
        if (child.isOpen && x >= at.x && x <= at.x + w && y >= at.y && y <= at.y + h) {
          next = child;
          x -= at.x;
          y -= at.y;
          break;
        }
      }
      item = next;
    }
    return null;
  }

  private listen(): void {
    const { canvas } = this;
    let held: { x: number; y: number; moved: boolean } | null = null;
    const place = (e: MouseEvent): Point => {
      const box = canvas.getBoundingClientRect();
      return { x: e.clientX - box.left, y: e.clientY - box.top };
    };
    canvas.addEventListener("pointerdown", (e) => {
      held = { x: e.clientX, y: e.clientY, moved: false };
      canvas.setPointerCapture(e.pointerId);
      this.events.activate();
    });
    canvas.addEventListener("pointermove", (e) => {
      if (held) {
        const dx = e.clientX - held.x, dy = e.clientY - held.y;
        if (held.moved || Math.abs(dx) + Math.abs(dy) > 3) {
          held.moved = true;
          canvas.classList.add("held");
          this.pan(dx, dy);
          held.x = e.clientX;
          held.y = e.clientY;
        }
        return;
      }
      const p = place(e);
      const item = this.itemAt(p);
      const wire = item && !item.isOpen ? null : this.wireAt(p);
      if (item !== this.hovered || wire !== this.hoveredWire) {
        this.hovered = item;
        this.hoveredWire = wire;
        this.redraw();
      }
      canvas.style.cursor = item && (!item.isOpen || this.isOnHeader(item, p)) ? "pointer" : "";
      this.events.hover(item, wire, { x: e.clientX, y: e.clientY });
    });
    canvas.addEventListener("pointerup", (e) => {
      canvas.classList.remove("held");
      if (held && !held.moved) this.click(place(e), e);
      held = null;
    });
    canvas.addEventListener("pointerleave", () => {
      this.hovered = this.hoveredWire = null;
      this.events.hover(null, null, { x: 0, y: 0 });
      this.redraw();
    });
    canvas.addEventListener("dblclick", (e) => {
      const p = place(e);
      const item = this.itemAt(p);
      if (item?.children.length && !this.isOnHandle(item, p)) this.toggle(item);
    });
    canvas.addEventListener(
      "wheel",
      (e) => {
        e.preventDefault();
        const unit = e.deltaMode === 1 ? 16 : 1;
        if (e.ctrlKey || e.metaKey || !e.shiftKey && isWheel(e)) this.zoom(Math.exp(-e.deltaY * unit * (e.ctrlKey ? 0.01 : 0.0016)), place(e));
        else this.pan(-e.deltaX * unit, -e.deltaY * unit);
      },
      { passive: false },
    );
  }

  private isOnHeader(item: Item, p: Point): boolean {
    const box = this.layouts.place(item);
    return box !== null && this.toWorld(p).y < box.y + HEADER;
  }

  /** Is it the handle at the right of a group, which opens and closes it? */
  private isOnHandle(item: Item, p: Point): boolean {
    const box = item.children.length ? this.layouts.place(item) : null;
    const { x, y } = this.toWorld(p);
    return box !== null && x > box.x + box.w - 32 && y < box.y + HEADER;
  }

  private click(p: Point, event: MouseEvent): void {
    const item = this.itemAt(p);
    if (item && this.isOnHandle(item, p)) {
      this.toggle(item);
      this.select(item);
      return;
    }
    if (item && item.isOpen && item.children.length && !this.isOnHeader(item, p)) {
      this.select(null);
      return;
    }
    if (event.altKey && item?.children.length) this.toggle(item);
    this.select(item);
  }

  // ---- drawing

  private draw(): void {
    const { pen, camera, ratio } = this;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = this.palette.paper;
    pen.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.drawDots();
    pen.setTransform(camera.k * ratio, 0, 0, camera.k * ratio, camera.x * ratio, camera.y * ratio);
    this.labels = [];
    const a = this.toWorld({ x: 0, y: 0 }), b = this.toWorld({ x: this.width, y: this.height });
    const sight: Box = { x: a.x, y: a.y, w: b.x - a.x, h: b.y - a.y };
    this.drawInside(this.tree.root, 0, 0, sight);
  }

  private drawDots(): void {
    const { pen, camera, ratio } = this;
    const gap = 28 * camera.k * (camera.k < 0.4 ? 4 : 1) * ratio;
    if (gap < 8) return;
    pen.fillStyle = this.palette.faint;
    const ox = (((camera.x * ratio) % gap) + gap) % gap, oy = (((camera.y * ratio) % gap) + gap) % gap;
    for (let x = ox; x < this.canvas.width; x += gap)
      for (let y = oy; y < this.canvas.height; y += gap) pen.fillRect(x, y, ratio, ratio);
  }

  private drawInside(group: Item, x: number, y: number, sight: Box): void {
    const layout = this.layouts.of(group);
    const { pen } = this;
    pen.save();
    pen.translate(x, y);
    const local = { ...sight, x: sight.x - x, y: sight.y - y };
    const near = layout.wires.filter((wire) => touches(bounds(wire.points), local));
    for (const wire of near) if (!wire.isLong) this.drawWire(wire, false);
    if (this.camera.k > 0.3) for (const stub of layout.stubs) this.drawStub(stub, local);
    for (const wire of near) if (this.isLit(wire)) this.drawWire(wire, true);
    for (const [child, at] of layout.at) {
      const { w, h } = this.layouts.size(child);
      const box = { ...at, w, h };
      if (!touches(box, local)) continue;
      if (child.isOpen && child.children.length) {
        this.drawFrame(child, box);
        this.drawInside(child, at.x, at.y, local);
      } else this.drawBox(child, box);
    }
    if (this.camera.k > 0.42) for (const wire of near) if (!wire.isLong) this.drawLabel(wire, x, y, local);
    pen.restore();
  }

  private isLit(wire: Wire): boolean {
    if (wire === this.hoveredWire) return true;
    const { selected } = this;
    if (!selected) return false;
    if (wire.from === selected || wire.to === selected) return true;
    if (selected.role !== "node" || !selected.node) return false;
    for (const value of wire.values) {
      if (!this.near.has(value)) continue;
      const isOut = this.tree.source(value) === selected.node.id;
      if (isOut) return true;
      for (let item: Item | null = selected; item; item = item.parent) if (item === wire.to) return true;
      if (!wire.to && wire.from && this.isInside(value, wire.from)) return true;
    }
    return false;
  }

  private isInside(value: number, group: Item): boolean {
    for (let item: Item | null = this.tree.leaf[this.tree.source(value)] ?? null; item; item = item.parent) {
      if (item === group) return true;
    }
    return false;
  }

  private drawWire(wire: Wire, isLit: boolean): void {
    const { pen, palette } = this;
    const { points } = wire;
    pen.strokeStyle = isLit ? palette.accent : palette.wire;
    pen.lineWidth = (isLit ? 2 : 1.2) * Math.max(1, 0.5 / this.camera.k);
    pen.beginPath();
    trace(pen, points);
    pen.stroke();
    if (this.camera.k < 0.3) return;
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
    const { pen, palette } = this;
    const lit = stub.wires.some((wire) => this.isLit(wire));
    const names = [...new Set(stub.wires.flatMap((w) => [...w.values].map((v) => this.program.nodes[v]!.name)))];
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
    const { nodes } = this.program;
    const types = new Set([...wire.values].map((v) => nodes[v]!.type).filter(Boolean));
    if (types.size === 0) return "";
    const [first] = types;
    return types.size > 1 ? `${types.size} values` : wire.values.size > 1 ? `${wire.values.size} × ${first}` : first!;
  }

  private drawLabel(wire: Wire, x: number, y: number, local: Box): void {
    if (!wire.to) return;
    const text = clip(this.wireText(wire), 40);
    if (!text) return;
    const p = middle(wire.points);
    if (p.x < local.x || p.x > local.x + local.w || p.y < local.y || p.y > local.y + local.h) return;
    const { pen, palette } = this;
    const font = `10px ${FONT}`;
    const w = textWidth(text, font) + 8;
    const box = { x: x + p.x - w / 2, y: y + p.y - 7, w, h: 14 };
    if (this.labels.some((other) => touches(other, box))) return;
    this.labels.push(box);
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
    return this.marksIn.has(item) && !(item.isOpen && item.children.length);
  }

  private border(item: Item): [string, number] {
    const { palette } = this;
    const scale = Math.max(1, 0.6 / this.camera.k);
    if (item === this.selected) return [palette.accent, 2.4 * scale];
    if (this.isMarked(item)) return [palette.mark, 2 * scale];
    if (item === this.hovered) return [palette.muted, 1.4 * scale];
    return [palette.line, 1];
  }

  private drawFrame(item: Item, box: Box): void {
    const { pen, palette } = this;
    const [line, width] = this.border(item);
    pen.fillStyle = palette.group[item.depth % 2]!;
    round(pen, box.x, box.y, box.w, box.h, 12);
    pen.fill();
    const colour = this.colour(item);
    if (colour) {
      pen.globalAlpha = palette.isDark ? 0.16 : 0.1;
      pen.fillStyle = colour;
      pen.fill();
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = item === this.selected ? line : colour ?? line;
    pen.lineWidth = width;
    pen.stroke();
    if (this.camera.k < 0.16) return;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.font = `600 13px ${FONT}`;
    pen.fillStyle = palette.ink;
    const room = box.w - 60;
    const label = fitText(item.label, `600 13px ${FONT}`, room);
    pen.fillText(label, box.x + 14, box.y + 18);
    const used = textWidth(label, `600 13px ${FONT}`);
    const sub = fitText(item.sub || item.node?.name || "", `11px ${FONT}`, room - used - 8);
    pen.font = `11px ${FONT}`;
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
      pen.fillRect(x, box.y + box.h - 6, w, 2.5);
      x += w;
    }
  }

  private drawHandle(x: number, y: number, isOpen: boolean): void {
    const { pen, palette } = this;
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
    const { pen, palette, camera } = this;
    const isGroup = item.children.length > 0;
    const [line, width] = this.border(item);
    const colour = this.colour(item);
    const radius = item.node?.kind === "input" || item.node?.kind === "output" ? box.h / 2 : 9;
    if (isGroup && camera.k > 0.2) {
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
      pen.globalAlpha = palette.isDark ? 0.24 : 0.13;
      pen.fillStyle = colour;
      pen.fill();
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = line === palette.line && colour ? colour : line;
    pen.lineWidth = width;
    pen.stroke();
    if (camera.k < 0.22) return;
    const cx = box.x + box.w / 2 - (isGroup ? 8 : 0);
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const bold = `600 13px ${FONT}`;
    pen.font = bold;
    pen.fillStyle = palette.ink;
    const sub = subText(item);
    const room = box.w - (isGroup ? 44 : 20);
    const shows = sub && camera.k > 0.34;
    pen.fillText(fitText(item.label, bold, room), cx, box.y + box.h / 2 - (shows ? 7.5 : 0));
    if (shows) {
      pen.font = `11px ${FONT}`;
      pen.fillStyle = palette.muted;
      pen.fillText(fitText(clip(sub, 46), `11px ${FONT}`, box.w - 20), box.x + box.w / 2, box.y + box.h / 2 + 9.5);
    }
    if (isGroup) this.drawHandle(box.x + box.w - 16, box.y + 16, false);
    if (isGroup && this.parts && !colour) this.drawParts(this.parts(item), box);
    const marks = isGroup ? this.marksIn.get(item) : undefined;
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

function isWheel(e: WheelEvent): boolean {
  return e.deltaX === 0;
}

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

function trace(pen: CanvasRenderingContext2D, points: Point[]): void {
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

function distance(p: Point, a: Point, b: Point): number {
  const dx = b.x - a.x, dy = b.y - a.y;
  const t = Math.max(0, Math.min(1, ((p.x - a.x) * dx + (p.y - a.y) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
}

function round(pen: CanvasRenderingContext2D, x: number, y: number, w: number, h: number, r: number): void {
  pen.beginPath();
  pen.roundRect(x, y, w, h, Math.min(r, w / 2, h / 2));
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
