/** What stands within a paragraph: emphasis, code, links. Makes nodes, never HTML. */

import { element } from "./dom.js";

/** Links and emphasis within each other beyond this are text. */
const DEEPEST = 8;

const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&nbsp;": "\u00a0" };
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const BARE_URL = /https?:\/\/[^\s<>`]+/y;
const ANGLE_LINK = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const BREAK = /<br\s*\/?>/iy;
const ENTITY = /&[a-z]+;/y;

/** The text as a fragment of nodes. */
export function inline(text, depth = 0, inLink = false) {
  const fragment = document.createDocumentFragment();
  if (depth > DEEPEST) {
    fragment.append(text);
    return fragment;
  }
  const { spans, brackets } = scan(text);
  const delimiters = [];
  let plain = "";
  const flush = () => {
    if (plain !== "") fragment.append(plain);
    plain = "";
  };
  const put = (node) => {
    flush();
    fragment.append(node);
  };
  const match = (pattern, at) => {
    pattern.lastIndex = at;
    return pattern.exec(text);
  };

  for (let at = 0; at < text.length; ) {
    const char = text[at];
    let found;
    if (char === "\n") {
      plain = plain.trimEnd();
      put(element("br"));
      at++;
    } else if (char === "\\" && text[at + 1] === "\n") {
      put(element("br"));
      at += 2;
    } else if (char === "\\" && ESCAPABLE.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (char === "`") {
      const span = spans.get(at) ?? { code: null, end: at + 1 };
      if (span.code !== null) put(element("code", {}, span.code));
      else plain += text.slice(at, span.end);
      at = span.end;
    } else if (char === "!" && text[at + 1] === "[" && (found = linkAt(text, at + 1, brackets))) {
      put(link(found.url, document.createTextNode(found.label || "picture"), inLink));
      at = found.end;
    } else if (char === "[" && (found = linkAt(text, at, brackets))) {
      put(link(found.url, inline(found.label, depth + 1, true), inLink));
      at = found.end;
    } else if (char === "<" && (found = match(ANGLE_LINK, at))) {
      put(link(found[1], document.createTextNode(found[1]), inLink));
      at += found[0].length;
    } else if (char === "<" && (found = match(BREAK, at))) {
      put(element("br"));
      at += found[0].length;
    } else if (char === "&" && (found = match(ENTITY, at)) && found[0] in ENTITIES) {
      plain += ENTITIES[found[0]];
      at += found[0].length;
    } else if (char === "h" && !/\w/.test(text[at - 1] ?? "") && (found = match(BARE_URL, at))) {
      const url = withoutPunctuation(found[0]);
      put(link(url, document.createTextNode(url), inLink));
      at += url.length;
    } else if (char === "*" || char === "_" || char === "~") {
      let end = at;
      while (text[end] === char) end++;
      if (char === "~" && end - at > 2) {
        plain += text.slice(at, end);
      } else {
        const node = document.createTextNode(text.slice(at, end));
        put(node);
        delimiters.push({ node, char, count: end - at, length: end - at, ...flanks(text, at, end, char) });
      }
      at = end;
    } else {
      plain += char;
      at++;
    }
  }
  flush();
  emphasise(delimiters);
  return fragment;
}

/** Where code is, by the place of its first backtick, and which bracket closes which, in one pass. */
function scan(text) {
  // Where runs of so many backticks begin.
  const runs = new Map();
  for (const { index, 0: run } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) runs.set(run.length, []);
    runs.get(run.length).push(index);
  }
  const spans = new Map();
  const brackets = new Map();
  const open = [];
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\") {
      at++;
    } else if (text[at] === "`") {
      let end = at;
      while (text[end] === "`") end++;
      // A run that an escaped backtick cut short may have a length that no whole run has.
      const closers = runs.get(end - at) ?? [];
      while (closers.length > 0 && closers[0] < end) closers.shift();
      const closer = closers[0];
      const code = closer === undefined ? null : text.slice(end, closer).replaceAll("\n", " ");
      const padded = code !== null && /^ .* $/.test(code) && code.trim() !== "";
      const span = { code: padded ? code.slice(1, -1) : code, end: closer === undefined ? end : closer + (end - at) };
      spans.set(at, span);
      at = span.end - 1;
    } else if (text[at] === "[") {
      open.push(at);
    } else if (text[at] === "]" && open.length > 0) {
      brackets.set(open.pop(), at);
    }
  }
  return { spans, brackets };
}

/** The link whose text begins with the bracket at `at`, if it is one: `[label](url "title")`. */
function linkAt(text, at, brackets) {
  const close = brackets.get(at);
  if (close === undefined || text[close + 1] !== "(") return null;
  const target = /\(\s*(?!\s)(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
  target.lastIndex = close + 1;
  const found = target.exec(text);
  if (!found) return null;
  const url = (found[1] ?? found[2]).replace(/\\([!-/:-@[-`{-~])/g, "$1");
  return { label: text.slice(at + 1, close), url, end: close + 1 + found[0].length };
}

/** A link, if it leads where links of a text may lead; else its label. It opens apart from the conversation. */
function link(url, label, inLink) {
  if (inLink || !isSafe(url)) return label;
  return element("a", { href: url, target: "_blank", rel: "noopener noreferrer", title: url }, label);
}

function isSafe(url) {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(url).protocol);
  } catch {
    return false;
  }
}

/** A sentence's marks after an address are not part of it, nor is a bracket that was opened before it. */
function withoutPunctuation(url) {
  let end = url.length;
  let unopened = url.split(")").length - url.split("(").length;
  for (; end > 0; end--) {
    const last = url[end - 1];
    if (last === ")" && unopened > 0) unopened--;
    else if (!".,:;!?'\"*_~]".includes(last)) break;
  }
  return url.slice(0, end);
}

/** Whether a run of marks can begin and end emphasis, by what stands beside it. */
function flanks(text, start, end, char) {
  const before = start === 0 ? " " : /[\udc00-\udfff]/.test(text[start - 1]) ? text.slice(start - 2, start) : text[start - 1];
  const after = end === text.length ? " " : String.fromCodePoint(text.codePointAt(end));
  const space = (one) => /^\s$/.test(one);
  const mark = (one) => /^[\p{P}\p{S}]$/u.test(one);
  const left = !space(after) && (!mark(after) || space(before) || mark(before));
  const right = !space(before) && (!mark(before) || space(after) || mark(after));
  if (char !== "_") return { opens: left, closes: right };
  return { opens: left && (!right || mark(before)), closes: right && (!left || mark(after)) };
}

function pairs(opener, closer) {
  if (opener.char !== closer.char || !opener.opens) return false;
  if (opener.char === "~") return opener.count === closer.count;
  const ambiguous = opener.closes || closer.opens;
  return !ambiguous || (opener.length + closer.length) % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
}

/** Puts what stands between marks that belong together into elements. */
function emphasise(delimiters) {
  delimiters.forEach((delimiter, place) => (delimiter.place = place));
  // For closers that pair with the same openers, the place before which there is none for them.
  const none = new Map();
  for (let at = 0; at < delimiters.length; ) {
    const closer = delimiters[at];
    const kind = [closer.char, closer.opens, closer.char === "~" ? closer.count : closer.length % 3].join();
    const first = none.get(kind) ?? 0;
    let before = closer.closes ? at - 1 : -1;
    while (before >= 0 && delimiters[before].place >= first && !pairs(delimiters[before], closer)) before--;
    if (before < 0 || delimiters[before].place < first) {
      if (closer.closes) none.set(kind, closer.place);
      at++;
      continue;
    }
    const opener = delimiters[before];
    const used = closer.char === "~" ? closer.count : opener.count >= 2 && closer.count >= 2 ? 2 : 1;
    const wrapper = element(closer.char === "~" ? "del" : used === 2 ? "strong" : "em");
    while (opener.node.nextSibling !== closer.node) wrapper.append(opener.node.nextSibling);
    opener.node.after(wrapper);
    delimiters.splice(before + 1, at - before - 1);
    at = before + 1;
    for (const side of [opener, closer]) {
      side.count -= used;
      side.node.data = side.char.repeat(side.count);
    }
    if (closer.count === 0) {
      closer.node.remove();
      delimiters.splice(at, 1);
    }
    if (opener.count === 0) {
      opener.node.remove();
      delimiters.splice(before, 1);
      at = before;
    }
  }
}
