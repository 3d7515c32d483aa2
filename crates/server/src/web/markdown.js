/**
 * Markdown to elements, as models write it: CommonMark's blocks, GitHub's tables, task lists and strikethrough. HTML stays
 * text, pictures become links (the page loads nothing from elsewhere), and a line's end is a line's end.
 *
 * A text that grows is drawn anew only from the first block on that has changed.
 */

import { inline } from "./inline.js";
import { copyButton, element } from "./dom.js";

/** Quotes and lists within each other beyond this are text. */
const DEEPEST = 12;

// None of these tries the same white space in more than one way: a line of ten thousand spaces takes no longer than another.
const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/s;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*))?$/s;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*(?:\|[ \t]*)?$/;
const UNDERLINE = /^ {0,3}(={3,}|-{3,})[ \t]*$/;

/** The raw text of each block that an element shows. */
const drawn = new WeakMap();

/** Makes `container` show `text`. */
export function renderMarkdown(container, text) {
  const blocks = parseBlocks(linesOf(text), 0);
  const before = drawn.get(container) ?? [];
  let same = 0;
  while (same < before.length && same < blocks.length && before[same] === blocks[same].raw) same++;
  while (container.children.length > same) container.lastElementChild.remove();
  container.append(...blocks.slice(same).map((block) => block.draw()));
  drawn.set(container, blocks.map((block) => block.raw));
}

/** Lines with spaces in the place of leading tabs, but in code, where a tab may be meant. */
function linesOf(text) {
  let fenced = false;
  return text.split("\n").map((raw) => {
    const line = raw.replace(/\r$/, "");
    if (/^\s*(```|~~~)/.test(line)) fenced = !fenced;
    return fenced ? line : line.replace(/^[ \t]+/, (space) => space.replaceAll("\t", "    "));
  });
}

const isBlank = (line) => line.trim() === "";

/** Columns of white space that a line begins with. */
const indentOf = (line) => /^[ \t]*/.exec(line)[0].replaceAll("\t", "    ").length;

/** A line without its first columns, as far as they are white. */
function outdented(line, columns) {
  let at = 0;
  for (let left = columns; left > 0 && (line[at] === " " || line[at] === "\t"); at++) left -= line[at] === " " ? 1 : 4;
  return line.slice(at);
}

function parseBlocks(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at++;
      continue;
    }
    const { end, draw } = blockAt(lines, at, depth);
    blocks.push({ raw: lines.slice(at, end).join("\n"), draw });
    at = end;
  }
  return blocks;
}

/** The block that begins at a line: the line after it, and what draws it. */
function blockAt(lines, at, depth) {
  const line = lines[at];
  if (indentOf(line) >= 4) return indentedCode(lines, at);
  if (FENCE.test(line)) return fencedCode(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return { end: at + 1, draw: () => headingElement(heading[1].length, withoutClosing(heading[2] ?? "")) };
  if (RULE.test(line)) return { end: at + 1, draw: () => element("hr") };
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at);
}

/** Whether a line ends the paragraph before it. */
function interrupts(lines, at) {
  const line = lines[at];
  if (indentOf(line) >= 4) return false;
  const item = ITEM.exec(line);
  const listBegins = item && item[4] && (!/\d/.test(item[2]) || parseInt(item[2]) === 1);
  return FENCE.test(line) || /^ {0,3}#{1,6}[ \t]/.test(line) || RULE.test(line) || QUOTE.test(line) || listBegins || isTable(lines, at);
}

/** The page's own headings are above those of the texts. */
function headingElement(level, text) {
  return element(`h${Math.min(level + 2, 6)}`, { class: `heading-${level}` }, inline(text));
}

/** A heading's text without the marks that may end its line. */
function withoutClosing(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (trimmed[end - 1] === "#") end--;
  return end === 0 || /[ \t]/.test(trimmed[end - 1]) ? trimmed.slice(0, end).trimEnd() : trimmed;
}

function paragraph(lines, at) {
  let end = at + 1;
  for (; end < lines.length && !isBlank(lines[end]); end++) {
    const underline = UNDERLINE.exec(lines[end]);
    if (underline) {
      const text = lines.slice(at, end).join("\n");
      return { end: end + 1, draw: () => headingElement(underline[1][0] === "=" ? 1 : 2, text) };
    }
    if (interrupts(lines, end)) break;
  }
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n").trimEnd();
  return { end, draw: () => element("p", {}, inline(text)) };
}

function fencedCode(lines, at) {
  const [, indent, fence, info] = FENCE.exec(lines[at]);
  const closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end++;
  const code = lines.slice(at + 1, end).map((line) => outdented(line, indent.length)).join("\n");
  return { end: Math.min(end + 1, lines.length), draw: () => codeElement(code, info.trim().split(/\s/)[0]) };
}

function indentedCode(lines, at) {
  let end = at;
  for (let next = at; next < lines.length && (isBlank(lines[next]) || indentOf(lines[next]) >= 4); next++) {
    if (!isBlank(lines[next])) end = next + 1;
  }
  const code = lines.slice(at, end).map((line) => outdented(line, 4)).join("\n");
  return { end, draw: () => codeElement(code, "") };
}

function codeElement(code, language) {
  const shown = element("code", {}, code);
  return element(
    "div",
    { class: "code" },
    element("div", { class: "code-head" }, element("span", {}, language || "text"), copyButton(() => code, "Copy code")),
    // Long lines scroll, also for those who have only a keyboard.
    element("pre", { tabindex: "0" }, shown),
  );
}

function quote(lines, at, depth) {
  let end = at;
  const inner = [];
  for (; end < lines.length && !isBlank(lines[end]); end++) {
    if (QUOTE.test(lines[end])) inner.push(lines[end].replace(/^ {0,3}> ?/, ""));
    else if (isBlank(inner.at(-1)) || interrupts(lines, end)) break;
    else inner.push(lines[end]);
  }
  return { end, draw: () => element("blockquote", {}, ...parseBlocks(inner, depth + 1).map((block) => block.draw())) };
}

/** Bullets, or numbers with a dot, or numbers with a bracket. */
const kindOf = (marker) => (/\d/.test(marker) ? marker.at(-1) : "bullet");

function list(lines, at, depth) {
  const [, outer, first] = ITEM.exec(lines[at]);
  const items = [];
  let loose = false;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || kindOf(item[2]) !== kindOf(first) || item[1].length >= outer.length + 2 || RULE.test(lines[end])) break;
    const [, indent, marker, space = " ", rest = ""] = item;
    const offset = indent.length + marker.length + (rest === "" || space.length > 4 ? 1 : space.length);
    const inner = [rest];
    let next = end + 1;
    // What is indented belongs to the item; so does a list that is indented by two, though less than CommonMark wants.
    for (; next < lines.length; next++) {
      const line = lines[next];
      const within = indentOf(line) >= offset || (indentOf(line) >= indent.length + 2 && ITEM.test(line));
      if (isBlank(line)) inner.push("");
      else if (within) inner.push(outdented(line, offset));
      else if (!isBlank(inner.at(-1)) && !ITEM.test(line) && !interrupts(lines, next)) inner.push(line.trimStart());
      else break;
    }
    const last = Math.max(0, inner.findLastIndex((line) => !isBlank(line)));
    const blanks = inner.length - 1 - last;
    inner.length = last + 1;
    const following = next < lines.length ? ITEM.exec(lines[next]) : null;
    const another = following !== null && kindOf(following[2]) === kindOf(first);
    loose ||= (blanks > 0 && another) || inner.slice(1).some(isBlank);
    items.push(inner);
    // Blank lines after the last item are not the list's.
    end = another ? next : next - blanks;
    if (!another) break;
  }
  const start = parseInt(first);
  const draw = () => {
    const drawnItems = items.map((inner) => itemElement(inner, loose, depth));
    return kindOf(first) === "bullet"
      ? element("ul", {}, ...drawnItems)
      : element("ol", { start: start === 1 ? null : start }, ...drawnItems);
  };
  return { end, draw };
}

function itemElement(inner, loose, depth) {
  const task = /^\[([ xX])\][ \t]+/.exec(inner[0]);
  const lines = task ? [inner[0].slice(task[0].length), ...inner.slice(1)] : inner;
  const parts = parseBlocks(lines, depth + 1).map((block) => block.draw());
  const children = parts.flatMap((part) => (part.tagName === "P" && !loose ? [...part.childNodes] : [part]));
  if (!task) return element("li", {}, ...children);
  const box = element("input", { type: "checkbox", disabled: true, checked: task[1] !== " " });
  return element("li", { class: "task" }, box, ...children);
}

function isTable(lines, at) {
  const next = lines[at + 1];
  if (next === undefined || !lines[at].includes("|") || !next.includes("-") || !DELIMITERS.test(next)) return false;
  return cells(lines[at]).length === cells(next).length;
}

/** A row's cells; a bar after a backslash, or between backticks, is none of theirs. */
function cells(line) {
  const row = line.trim().replace(/^\|/, "");
  const found = [""];
  for (const part of row.match(/\\.|`[^`]*`|\||[^\\`|]+|[\\`]/gs) ?? []) {
    if (part === "|") found.push("");
    else found[found.length - 1] += part === "\\|" ? "|" : part;
  }
  if (found.length > 1 && isBlank(found.at(-1))) found.pop();
  return found.map((cell) => cell.trim());
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) end++;
  const aligns = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : null));
  const row = (line, tag) => {
    const texts = cells(line);
    return element("tr", {}, ...aligns.map((align, column) => element(tag, { "data-align": align }, inline(texts[column] ?? ""))));
  };
  const draw = () => {
    const head = element("thead", {}, row(lines[at], "th"));
    const body = element("tbody", {}, ...lines.slice(at + 2, end).map((line) => row(line, "td")));
    return element("div", { class: "table", tabindex: "0" }, element("table", {}, head, body));
  };
  return { end, draw };
}
