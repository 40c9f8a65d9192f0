// Two things that a page cannot do without a script: live parts, and times in the reader's zone.
"use strict";

function localTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(each.dateTime);
    if (!Number.isNaN(moment.getTime())) {
      each.title = each.textContent;
      each.textContent = moment.toLocaleString();
    }
  }
}

function live(part) {
  const button = document.getElementById(part.dataset.button);
  const state = document.getElementById(part.dataset.state);
  let source = null;
  function start() {
    source = new EventSource(part.dataset.events);
    source.onmessage = (event) => {
      part.innerHTML = event.data; // made by the console's own template, which escapes each value
      localTimes(part);
      state.textContent = "live";
    };
    source.onerror = () => { state.textContent = "not connected, trying again"; };
    button.textContent = "Pause";
  }
  function stop() {
    source.close();
    source = null;
    state.textContent = "paused";
    button.textContent = "Go on";
  }
  button.hidden = false;
  button.addEventListener("click", () => (source === null ? start() : stop()));
  start();
}

localTimes(document);
for (const part of document.querySelectorAll("[data-events]")) live(part);
