/** Before anything is drawn: the theme that was chosen, else the system's. */
"use strict";
try {
  const { theme } = JSON.parse(localStorage.getItem("lily.settings")) ?? {};
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the system's theme will do.
}
