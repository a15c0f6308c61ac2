"use strict";
// The page of one exported episode.

const exported = JSON.parse(document.getElementById("episode-data").textContent);
document.getElementById("detail").replaceChildren(...episodeDetail(exported.episodes[0], exported, () => {}));
