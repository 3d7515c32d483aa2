/** The settings: kept as they are changed, one object that everybody reads. */

import { readTools } from "./chat.js";
import { loadSettings, saveSettings } from "./store.js";
import { toast } from "./dom.js";

export const settings = loadSettings();

const dialog = document.getElementById("settings");
const form = dialog.querySelector("form");
const toolsProblem = document.getElementById("tools-problem");
const listeners = [];

/** Calls `changed` with the name of each setting that changes. */
export function onSetting(changed) {
  listeners.push(changed);
}

export function change(name, value) {
  settings[name] = value;
  if (!saveSettings(settings)) toast("The browser has no room to keep the settings.");
  for (const changed of listeners) changed(name);
}

export function openSettings() {
  for (const field of fields()) {
    const value = settings[field.name];
    if (field.type === "checkbox") field.checked = value;
    else field.value = value ?? "";
  }
  checkTools();
  dialog.showModal();
}

export function applyTheme() {
  if (settings.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = settings.theme;
}

function fields() {
  return [...form.elements].filter((field) => field.name);
}

form.addEventListener("input", ({ target }) => {
  if (target.name === "tools") checkTools();
  // A number out of its range is marked as such and not taken.
  if (!target.name || !target.checkValidity()) return;
  if (target.type === "checkbox") change(target.name, target.checked);
  else if (target.type === "number") change(target.name, target.value === "" ? null : target.valueAsNumber);
  else change(target.name, target.value);
});

// Enter in a field would press the first button, which closes.
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.tagName === "INPUT") event.preventDefault();
});

dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});

function checkTools() {
  try {
    readTools(form.elements.tools.value);
    toolsProblem.textContent = "";
  } catch (error) {
    toolsProblem.textContent = error.message;
  }
}
