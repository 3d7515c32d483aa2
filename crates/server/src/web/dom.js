/** Making elements. Text only ever becomes text nodes: nothing on this page is parsed as HTML. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. Functions among the attributes are listeners, named as `onclick`; `true` is an attribute without a value,
 * `false`, `null` and `undefined` are none. Strings among the children become text.
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

/** One of the page's pictures, by its name in index.html. */
export function icon(name) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("class", "icon");
  picture.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  picture.append(use);
  return picture;
}

/** A button that shows only a picture, and says what it does to those who can't see that. */
export function iconButton(name, label, onclick) {
  return element("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick }, icon(name));
}

/** A button that copies what `text` gives, and says that it has. */
export function copyButton(text, label = "Copy") {
  const button = iconButton("copy", label, async () => {
    const copied = await copy(text());
    announce(copied ? "Copied" : "The browser did not let the page copy");
    button.replaceChildren(icon(copied ? "check" : "cross"));
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

/** Browsers have a clipboard only for pages that come over HTTPS or from this machine. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { class: "visually-hidden", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/** Says something to those who listen to the page. */
export function announce(text) {
  document.getElementById("announcements").textContent = text;
}

let toastTimer;

/** Shows a sentence for some seconds, with a button if there is something to do about it. Gives what hides it. */
export function toast(text, action) {
  const place = document.getElementById("toast");
  clearTimeout(toastTimer);
  const shown = element("div", { class: "toast" });
  const hide = () => shown.remove();
  const children = [element("span", {}, text)];
  if (action) {
    const run = () => {
      hide();
      action.run();
    };
    children.push(element("button", { type: "button", onclick: run }, action.label));
  }
  shown.append(...children);
  place.replaceChildren(shown);
  toastTimer = setTimeout(hide, 10_000);
  return hide;
}
