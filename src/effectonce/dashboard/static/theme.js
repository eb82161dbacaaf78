// Before the first paint: the theme that was chosen here, else the system's.
"use strict";
(() => {
  const chosen = (() => { try { return localStorage.getItem("effectonce-theme"); } catch { return null; } })();
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
