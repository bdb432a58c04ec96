// Memory over a program's life: each block of memory from its first to its last step, and the sum.

import { type Program, showBytes } from "./data";
import { button, h } from "./dom";
import { FONT } from "./layout";
import { categoryOf, readPalette } from "./theme";

const HEIGHT = 210, LEFT = 64, BOTTOM = 22, TOP = 10;

export class MemoryChart {
  readonly element: HTMLElement;
  private readonly canvas = document.createElement("canvas");
  private readonly told = h("span", { class: "told", "data-name": "memory" });
  private readonly tip = h("span", { class: "muted tip" });
  private program: Program | null = null;
  private step = -1;

  constructor(private readonly select: (node: number) => void, close: () => void) {
    this.element = h("div", { class: "memory", hidden: true }, h("header", {}, h("b", {}, "Memory"), this.told, this.tip, button("×", "Close (m)", close)), this.canvas);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.canvas.addEventListener("mousemove", (e) => this.hover(e));
    this.canvas.addEventListener("mouseleave", () => {
      this.step = -1;
      this.tip.textContent = "";
      this.draw();
    });
    this.canvas.addEventListener("click", (e) => {
      const found = this.blockAt(e);
      const node = found ? found[0] : this.program?.memory.steps[this.stepAt(e)] ?? -1;
      if (node >= 0) this.select(node);
    });
  }

  show(program: Program): void {
    this.program = program;
    const { memory } = program;
    const peak = greatest(this.totals(), 0);
    const parts = memory.kind === "plan" ? [`arena ${showBytes(memory.arena)}`] : ["if each value is given back after its last use"];
    parts.unshift(`peak ${showBytes(peak)}`);
    if (memory.weights) parts.push(`weights ${showBytes(memory.weights)}`);
    if (program.symbols.some((s) => s.example != null) && memory.kind === "lifetimes") parts.push("at the example's sizes");
    if (memory.unknown) parts.push(`${memory.unknown} of unknown size`);
    this.told.textContent = parts.join(" · ");
    this.draw();
  }

  private totals(): number[] {
    const memory = this.program!.memory;
    const change = new Array(memory.steps.length + 1).fill(0) as number[];
    for (const [, first, last, , bytes] of memory.blocks) {
      change[first]! += bytes;
      change[last + 1]! -= bytes;
    }
    let sum = 0;
    return change.slice(0, -1).map((c) => (sum += c));
  }

  private get width(): number {
    return this.canvas.clientWidth;
  }

  private stepAt(e: MouseEvent): number {
    const steps = this.program?.memory.steps.length ?? 1;
    const x = e.offsetX - LEFT;
    return Math.min(Math.max(Math.floor((x / (this.width - LEFT - 12)) * steps), 0), steps - 1);
  }

  private blockAt(e: MouseEvent): [number, number, number, number, number] | null {
    const memory = this.program?.memory;
    if (!memory || memory.kind !== "plan") return null;
    const step = this.stepAt(e);
    const at = (1 - (e.offsetY - TOP) / (HEIGHT - TOP - BOTTOM)) * memory.arena;
    return memory.blocks.find(([, first, last, offset, bytes]) => first <= step && step <= last && offset <= at && at <= offset + bytes) ?? null;
  }

  private hover(e: MouseEvent): void {
    const program = this.program!;
    this.step = this.stepAt(e);
    const node = program.nodes[program.memory.steps[this.step] ?? -1];
    const block = this.blockAt(e);
    const owner = block ? program.nodes[block[0]] : undefined;
    const total = this.totals()[this.step] ?? 0;
    const parts = [`step ${this.step}${node ? ` (${node.name})` : ""}: ${showBytes(total)}`];
    if (block) parts.push(`${owner?.name ?? "an input"}: ${showBytes(block[4])} at ${block[3]}, steps ${block[1]}–${block[2]}`);
    this.tip.textContent = parts.join(" · ");
    this.draw();
  }

  draw(): void {
    const { canvas, program } = this;
    if (!program || this.element.hidden || !this.width) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = this.width * ratio;
    canvas.height = HEIGHT * ratio;
    const pen = canvas.getContext("2d")!;
    pen.scale(ratio, ratio);
    const palette = readPalette();
    const { memory, nodes } = program;
    const totals = this.totals();
    const steps = Math.max(memory.steps.length, 1);
    const most = greatest(totals, memory.kind === "plan" ? Math.max(memory.arena, 1) : 1);
    const w = this.width - LEFT - 12, hgt = HEIGHT - TOP - BOTTOM;
    const x = (step: number): number => LEFT + (step / steps) * w;
    const y = (bytes: number): number => TOP + hgt - (bytes / most) * hgt;
    pen.font = `10px ${FONT}`;
    pen.textBaseline = "middle";
    for (let i = 0; i <= 4; i++) {
      const value = (most * i) / 4;
      pen.fillStyle = palette.muted;
      pen.textAlign = "right";
      pen.fillText(showBytes(value), LEFT - 8, y(value));
      pen.fillStyle = palette.line;
      pen.fillRect(LEFT, y(value), w, 1);
    }
    if (memory.kind === "plan") {
      for (const [node, first, last, offset, bytes] of memory.blocks) {
        const owner = nodes[node];
        pen.fillStyle = owner ? categoryOf(owner).hue : "#12b886";
        pen.globalAlpha = 0.55;
        const top = y(offset + bytes), tall = Math.max(y(offset) - top - 0.5, 0.5), wide = Math.max(x(last + 1) - x(first) - 0.5, 0.5);
        pen.fillRect(x(first), top, wide, tall);
        pen.globalAlpha = 1;
        if (owner && wide > 46 && tall > 12) {
          pen.save();
          pen.beginPath();
          pen.rect(x(first), top, wide - 4, tall);
          pen.clip();
          pen.fillStyle = palette.ink;
          pen.textAlign = "left";
          pen.fillText(owner.name, x(first) + 4, top + tall / 2);
          pen.restore();
        }
      }
    }
    pen.beginPath();
    pen.moveTo(x(0), y(0));
    totals.forEach((bytes, step) => {
      pen.lineTo(x(step), y(bytes));
      pen.lineTo(x(step + 1), y(bytes));
    });
    pen.lineTo(x(steps), y(0));
    if (memory.kind === "lifetimes") {
      pen.fillStyle = palette.accent;
      pen.globalAlpha = 0.22;
      pen.fill();
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = palette.accent;
    pen.lineWidth = 1.5;
    pen.stroke();
    pen.fillStyle = palette.muted;
    pen.textAlign = "left";
    pen.fillText(`${steps} steps, in the order of the program`, LEFT, HEIGHT - 9);
    if (this.step >= 0) {
      pen.fillStyle = palette.ink;
      pen.globalAlpha = 0.35;
      pen.fillRect(x(this.step), TOP, Math.max(w / steps, 1), hgt);
      pen.globalAlpha = 1;
    }
  }
}

function greatest(values: number[], least: number): number {
  return values.reduce((a, b) => Math.max(a, b), least);
}
