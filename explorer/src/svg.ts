// A pen that writes SVG: it takes what a canvas takes, as far as the drawing needs it.

import type { Pen } from "./painter";

interface State {
  x: number;
  y: number;
}

const ANCHORS: Record<string, string> = { left: "start", center: "middle", right: "end" };

export class SvgPen implements Pen {
  fillStyle: Pen["fillStyle"] = "#000";
  strokeStyle: Pen["strokeStyle"] = "#000";
  lineWidth = 1;
  globalAlpha = 1;
  font = "";
  textAlign: CanvasTextAlign = "left";
  textBaseline: CanvasTextBaseline = "middle";
  private readonly parts: string[] = [];
  private readonly states: State[] = [];
  private at: State = { x: 0, y: 0 };
  private path: string[] = [];
  private dash = "";

  save(): void {
    this.states.push({ ...this.at });
  }

  restore(): void {
    this.at = this.states.pop() ?? this.at;
  }

  translate(x: number, y: number): void {
    this.at.x += x;
    this.at.y += y;
  }

  beginPath(): void {
    this.path = [];
  }

  moveTo(x: number, y: number): void {
    this.path.push(`M${this.point(x, y)}`);
  }

  lineTo(x: number, y: number): void {
    this.path.push(`L${this.point(x, y)}`);
  }

  bezierCurveTo(ax: number, ay: number, bx: number, by: number, x: number, y: number): void {
    this.path.push(`C${this.point(ax, ay)} ${this.point(bx, by)} ${this.point(x, y)}`);
  }

  roundRect(x: number, y: number, w: number, h: number, radius?: number | DOMPointInit | (number | DOMPointInit)[]): void {
    const r = Number(radius ?? 0), arc = (to: string): string => `A${r} ${r} 0 0 1 ${to}`;
    this.path.push(
      `M${this.point(x + r, y)}L${this.point(x + w - r, y)}${arc(this.point(x + w, y + r))}L${this.point(x + w, y + h - r)}${arc(this.point(x + w - r, y + h))}` +
        `L${this.point(x + r, y + h)}${arc(this.point(x, y + h - r))}L${this.point(x, y + r)}${arc(this.point(x + r, y))}Z`,
    );
  }

  fill(): void {
    this.parts.push(`<path d="${this.path.join("")}" fill="${escape(String(this.fillStyle))}"${this.alpha}/>`);
  }

  stroke(): void {
    this.parts.push(`<path d="${this.path.join("")}" fill="none" stroke="${escape(String(this.strokeStyle))}" stroke-width="${this.lineWidth}"${this.dash}${this.alpha}/>`);
  }

  fillRect(x: number, y: number, w: number, h: number): void {
    const [left, top] = this.point(x, y).split(" ");
    this.parts.push(`<rect x="${left}" y="${top}" width="${short(w)}" height="${short(h)}" fill="${escape(String(this.fillStyle))}"${this.alpha}/>`);
  }

  fillText(text: string, x: number, y: number): void {
    const [left, top] = this.point(x, y).split(" ");
    this.parts.push(`<text x="${left}" y="${top}" style="font:${escape(this.font)}" fill="${escape(String(this.fillStyle))}" text-anchor="${ANCHORS[this.textAlign] ?? "start"}" dominant-baseline="central"${this.alpha}>${escape(text)}</text>`);
  }

  setLineDash(dash: Iterable<number>): void {
    const all = [...dash];
    this.dash = all.length ? ` stroke-dasharray="${all.join(" ")}"` : "";
  }

  /** The file, with the given sizes. */
  finish(width: number, height: number): string {
    const [w, h] = [Math.ceil(width), Math.ceil(height)];
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${h}" viewBox="0 0 ${w} ${h}">\n${this.parts.join("\n")}\n</svg>\n`;
  }

  private get alpha(): string {
    return this.globalAlpha === 1 ? "" : ` opacity="${this.globalAlpha}"`;
  }

  private point(x: number, y: number): string {
    return `${short(x + this.at.x)} ${short(y + this.at.y)}`;
  }
}

function short(value: number): number {
  return Math.round(value * 100) / 100;
}

function escape(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
