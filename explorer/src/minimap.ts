// The whole drawing, small, with a frame around what is in sight. It is there while something is out
// of sight, so it covers nothing of a drawing that fits.

import { h } from "./dom";
import type { Box, Layout, Point } from "./layout";
import type { Scene } from "./painter";
import type { Item } from "./tree";

const WIDEST = 150, TALLEST = 300;
/** From its edges to those of the pane, as in `style.css`, and to the drawing. */
const GAP = 10;
/** How many boxes are drawn at most: smaller ones are left out. */
const MOST_BOXES = 6000;

type Room = { w: number; h: number };

const hasNoRoom = (room: Room): boolean => room.w < 480 || room.h < 200;

const scaleOf = (root: Layout, room: Room): number =>
  Math.min(Math.min(WIDEST, room.w * 0.25) / root.w, Math.min(TALLEST, room.h * 0.6) / root.h);

export class Minimap {
  private readonly canvas = document.createElement("canvas");
  private readonly frame = h("i", {});
  readonly element = h("div", { class: "minimap", hidden: true, title: "Drag to move" }, this.canvas, this.frame);
  private drawn: unknown[] = [];
  private scale = 1;

  constructor(private readonly scene: Scene, center: (at: Point) => void) {
    const go = (e: PointerEvent): void => {
      const box = this.canvas.getBoundingClientRect();
      center({ x: (e.clientX - box.left) / this.scale, y: (e.clientY - box.top) / this.scale });
    };
    this.element.addEventListener("pointerdown", (e) => {
      this.element.setPointerCapture(e.pointerId);
      go(e);
    });
    this.element.addEventListener("pointermove", (e) => e.buttons && go(e));
  }

  /** How wide a strip it takes at the right of a drawing that is not all in sight. */
  strip(room: Room): number {
    const { root } = this.scene.layouts;
    return hasNoRoom(room) ? 0 : Math.max(root.w * scaleOf(root, room), 8) + 2 * GAP;
  }

  /** Show where `sight` is; `room` is the size of the whole pane. */
  update(sight: Box, room: Room): void {
    const root = this.scene.layouts.root;
    const isAll = sight.x <= 0 && sight.y <= 0 && sight.x + sight.w >= root.w && sight.y + sight.h >= root.h;
    this.element.hidden = isAll || hasNoRoom(room);
    if (this.element.hidden) return;
    const drawn = [root, this.scene.palette, this.scene.colour, room.w, room.h];
    if (drawn.some((each, i) => each !== this.drawn[i])) {
      this.drawn = drawn;
      this.scale = scaleOf(root, room);
      this.draw(root);
    }
    const left = Math.max(sight.x, 0), top = Math.max(sight.y, 0);
    const right = Math.min(sight.x + sight.w, root.w), bottom = Math.min(sight.y + sight.h, root.h);
    const px = (value: number): string => `${Math.max(value * this.scale, 0)}px`;
    Object.assign(this.frame.style, { left: px(left), top: px(top), width: px(right - left), height: px(bottom - top) });
    this.frame.hidden = right <= left || bottom <= top;
  }

  private draw(root: Layout): void {
    const { canvas, scale } = this, ratio = window.devicePixelRatio || 1;
    const w = Math.max(root.w * scale, 8), tall = Math.max(root.h * scale, 8);
    canvas.width = Math.ceil(w * ratio);
    canvas.height = Math.ceil(tall * ratio);
    Object.assign(canvas.style, { width: `${w}px`, height: `${tall}px` });
    const pen = canvas.getContext("2d")!;
    pen.scale(ratio * scale, ratio * scale);
    const { layouts, palette } = this.scene;
    let left = MOST_BOXES;
    const walk = (group: Item, x: number, y: number): void => {
      for (const [item, at] of layouts.of(group).at) {
        const size = layouts.size(item);
        if (size.h * scale < 0.4 || left-- <= 0) continue;
        const isOpen = item.isOpen && item.children.length > 0;
        pen.globalAlpha = isOpen ? 0.25 : 0.8;
        pen.fillStyle = this.scene.colour(item) ?? palette.wire;
        pen.fillRect(x + at.x, y + at.y, size.w, size.h);
        if (isOpen) walk(item, x + at.x, y + at.y);
      }
    };
    walk(this.scene.tree.root, 0, 0);
  }
}
