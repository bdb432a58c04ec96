// One program on a canvas: what is unfolded, selected and marked, the camera, the mouse. The drawing
// itself is painter.ts.

import type { Program } from "./data";
import { h } from "./dom";
import { type Box, HEADER, Layouts, type Point, type Wire } from "./layout";
import { Minimap } from "./minimap";
import { isCut, Painter, type Scene } from "./painter";
import { SvgPen } from "./svg";
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

const LEAST = 0.02, MOST = 3;
/** How much room is left around the drawing. */
const MARGIN = 28;
/** The most pixels that a picture has on a side, and in all. */
const MOST_SIDE = 16000, MOST_PIXELS = 1.2e8;
/** How many milliseconds unfolding may take. */
const MOST_TIME = 150;

export class View implements Scene {
  readonly canvas = document.createElement("canvas");
  readonly element: HTMLElement;
  tree: Tree;
  layouts: Layouts;
  camera: Camera = { x: 0, y: 0, k: 1 };
  selected: Item | null = null;
  /** Nodes that are marked: matches of a search, or counterparts of another stage. */
  marked = new Set<number>();
  colour: (item: Item) => string | null = (item) => (item.node ? categoryOf(item.node).hue : null);
  parts: ((item: Item) => [string, number][]) | null = null;
  private showAll = false;
  palette: Palette = readPalette();
  hovered: Item | null = null;
  hoveredWire: Wire | null = null;
  near = new Set<number>();
  marksIn = new Map<Item, number>();
  private pen: CanvasRenderingContext2D;
  private readonly minimap = new Minimap(this, (at) => this.center(at));
  private isDirty = true;
  private tween: { from: Camera; to: Camera; start: number } | null = null;
  private ratio = 1;

  constructor(public program: Program, private readonly events: ViewEvents) {
    this.pen = this.canvas.getContext("2d")!;
    this.canvas.className = "drawing";
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "The graph; the tree of modules beside it has the same");
    this.tree = new Tree(program, false);
    this.layouts = new Layouts(this.tree);
    this.element = h("div", { class: "view" }, this.canvas, this.minimap.element);
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
    this.tween = this.fitted = null;
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
    const k = this.wholeScale();
    if (k >= 0.35 || h <= w) return this.fitAll(smooth);
    // Too long to be read at once: begin at its top, beside the map.
    const room = this.width - this.minimap.strip({ w: this.width, h: this.height });
    const wide = Math.max(Math.min(room / (w + 2 * MARGIN), 0.9), 0.3);
    const x = Math.min((this.width - w * wide) / 2, room - w * wide);
    this.go({ k: wide, x, y: MARGIN }, smooth);
    this.fitted = (again) => this.fit(again);
  }

  fitAll(smooth = true): void {
    const { w, h } = this.layouts.root;
    const k = this.wholeScale();
    this.go({ k, x: (this.width - w * k) / 2, y: (this.height - h * k) / 2 }, smooth);
    this.fitted = (again) => this.fitAll(again);
  }

  /** The scale at which all of it is in sight. */
  private wholeScale(): number {
    const { w, h } = this.layouts.root;
    const [wide, tall] = [this.width - 2 * MARGIN, this.height - 2 * MARGIN].map((room) => Math.max(room, 10));
    return Math.min(wide! / w, tall! / h, 1.2);
  }

  private center({ x, y }: Point): void {
    const { k } = this.camera;
    this.go({ k, x: this.width / 2 - x * k, y: this.height / 2 - y * k }, false);
  }

  moveTo(box: Box): void {
    const fits = Math.min((this.width * 0.9) / box.w, (this.height * 0.9) / box.h, 1.2);
    const k = Math.max(Math.min(Math.max(this.camera.k, 0.7), fits), 0.08);
    const y = box.h * k > this.height * 0.8 ? 40 - box.y * k : this.height / 2 - (box.y + box.h / 2) * k;
    this.go({ k, x: this.width / 2 - (box.x + box.w / 2) * k, y }, true);
  }

  private go(to: Camera, smooth: boolean): void {
    this.fitted = null;
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
    this.tween = this.fitted = null;
    this.camera = { k, x: at.x - (at.x - this.camera.x) * f, y: at.y - (at.y - this.camera.y) * f };
    this.redraw();
  }

  pan(dx: number, dy: number): void {
    this.tween = this.fitted = null;
    this.camera.x += dx;
    this.camera.y += dy;
    this.redraw();
  }

  /** Is all of it in sight, or its top, as `fit` left it? Then it stays so when the pane changes. */
  private fitted: ((smooth: boolean) => void) | null = null;

  private resize(): void {
    this.ratio = window.devicePixelRatio || 1;
    const w = Math.round(this.width * this.ratio), h = Math.round(this.height * this.ratio);
    if (!w || !h || (this.canvas.width === w && this.canvas.height === h)) return;
    const first = this.canvas.dataset["ready"] === undefined;
    this.canvas.width = w;
    this.canvas.height = h;
    this.canvas.dataset["ready"] = "1";
    if (this.fitted) this.fitted(false);
    else if (first && this.selected) this.moveTo(this.layouts.place(this.selected)!); // an address led there before sizes were known
    else if (first) this.fit(false);
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
    const { x, y } = this.toWorld({ x: 0, y: 0 });
    const sight: Box = { x, y, w: this.width / camera.k, h: this.height / camera.k };
    new Painter(this, pen, camera.k).paint(sight);
    this.minimap.update(sight, { w: this.width, h: this.height });
  }

  /** All that is unfolded, also what is out of sight. */
  private get whole(): Box {
    const { w, h } = this.layouts.root;
    return { x: -MARGIN, y: -MARGIN, w: w + 2 * MARGIN, h: h + 2 * MARGIN };
  }

  toSvg(): string {
    const { x, y, w, h } = this.whole;
    const pen = new SvgPen();
    pen.fillStyle = this.palette.paper;
    pen.fillRect(0, 0, w, h);
    pen.translate(-x, -y);
    new Painter(this, pen, 1).paint(this.whole);
    return pen.finish(w, h);
  }

  toPng(): Promise<Blob | null> {
    const { x, y, w, h } = this.whole;
    const k = Math.min(2, MOST_SIDE / Math.max(w, h), Math.sqrt(MOST_PIXELS / (w * h)));
    const canvas = document.createElement("canvas");
    canvas.width = Math.floor(w * k);
    canvas.height = Math.floor(h * k);
    const pen = canvas.getContext("2d")!;
    pen.fillStyle = this.palette.paper;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.scale(k, k);
    pen.translate(-x, -y);
    new Painter(this, pen, k).paint(this.whole);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  /** Has a box texts that do not fit it, or cannot be read at this scale? */
  hidesText(item: Item): boolean {
    return this.camera.k < 0.45 || isCut(item, this.layouts.size(item).w);
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
}

// ---- geometry

function isWheel(e: WheelEvent): boolean {
  return e.deltaX === 0;
}

function distance(p: Point, a: Point, b: Point): number {
  const dx = b.x - a.x, dy = b.y - a.y;
  const t = Math.max(0, Math.min(1, ((p.x - a.x) * dx + (p.y - a.y) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
}

