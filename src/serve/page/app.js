// SPDX-License-Identifier: Apache-2.0
// The page: signing in, the list of clips, and keeping both in step with the server.

import * as api from '/api.js';
import * as composer from '/composer.js';
import {Card, isActive} from '/card.js';

const $ = (id) => document.getElementById(id);
const kPage = 24;
const kPollMs = 3000;
const cards = new Map();  // id → Card, newest first in the document
let stream = null;        // of the clip that is being made: {id, source}
let oldest = null;        // id of the last clip that was listed
let timer = 0;
let shown = null;         // 'studio' or 'sign-in-page'

const announce = (text) => { $('announcer').textContent = text; };

function connected(yes) {
  $('connection').textContent = yes ? '' : 'The server does not answer. Trying again …';
  $('connection').classList.toggle('down', !yes);
}

// ---------------------------------------------------------------- what is shown

function show(name) {
  shown = name;
  $('studio').hidden = name !== 'studio';
  $('sign-in-page').hidden = name !== 'sign-in-page';
}

function leave() {
  closeStream();
  clearTimeout(timer);
  cards.clear();
  $('clips').replaceChildren();
  $('sign-out').hidden = true;
  document.title = 'magi2';
  show('sign-in-page');
  $('key').focus();
}

function addCard(video, place) {
  const card = new Card(video, (name, of) => kActions[name](of).catch(report));
  cards.set(video.id, card);
  if (place === 'first') $('clips').prepend(card.element);
  else $('clips').append(card.element);
}

function dropCard(id) {
  const card = cards.get(id);
  if (!card) return;
  const next = card.element.nextElementSibling ?? card.element.previousElementSibling;
  if (card.element.contains(document.activeElement)) (next?.querySelector('h3') ?? $('clips-title')).focus();
  card.element.remove();
  cards.delete(id);
  $('empty').hidden = cards.size > 0;
}

/** Takes over a video's new state and says aloud when it ended. */
function take(video) {
  const card = cards.get(video.id);
  const before = card.video.status;
  card.update(video);
  if (before === video.status || isActive(video)) return;
  announce({completed: 'The clip is ready: ', failed: 'The clip failed: ', cancelled: 'Cancelled: '}[video.status] +
           card.video.prompt.slice(0, 80));
}

function report(error) {
  if (error.status === 401) return leave();
  if (error instanceof api.Unreachable) return connected(false);
  announce(error.message);
  composer.showError(error.message, null);
}

// ---------------------------------------------------------------- in step with the server

/** How far it is, for who looks at another tab. */
function showTitle() {
  const running = [...cards.values()].find((card) => card.video.status === 'in_progress');
  document.title = running ? `${running.video.progress} % · magi2` : 'magi2';
}

function closeStream() {
  stream?.source.close();
  stream = null;
}

/** One stream at a time, of the clip that is being made: browsers allow few connections to a server. */
function follow() {
  const running = [...cards.values()].find((card) => card.video.status === 'in_progress');
  if (stream && stream.id === running?.video.id) return;
  closeStream();
  if (!running) return;
  const {id} = running.video;
  const source = new EventSource(api.eventsUrl(id));
  stream = {id, source};
  const on = (name, handle) => source.addEventListener(name, (event) => {
    if (stream?.source === source && cards.has(id)) handle(JSON.parse(event.data));
  });
  on('status', take);
  on('progress', (progress) => {
    cards.get(id).update(progress);
    showTitle();
  });
  on('preview', (preview) => cards.get(id).showFrame(preview.image));
  on('done', (video) => {
    closeStream();
    if (video.status === 'deleted') dropCard(id);
    else take(video);
    refresh();
  });
}

async function refresh() {
  clearTimeout(timer);
  try {
    const page = await api.list(kPage);
    connected(true);
    for (const video of page.data.slice().reverse())
      if (cards.has(video.id)) take(video);
      else addCard(video, 'first');
    dropMissing(page);
    if (!oldest) {
      oldest = page.last_id;
      $('older').hidden = !page.has_more;
    }
    $('empty').hidden = cards.size > 0;
    follow();
    showTitle();
  } catch (error) {
    report(error);
  }
  if (shown === 'studio') timer = setTimeout(refresh, document.hidden ? 5 * kPollMs : kPollMs);
}

/** Clips that the newest page should hold and does not were deleted elsewhere. */
function dropMissing(page) {
  const listed = new Set(page.data.map((video) => video.id));
  const end = page.data.at(-1)?.created_at ?? -1;
  for (const [id, card] of cards)
    if (!listed.has(id) && (!page.has_more || card.video.created_at > end)) dropCard(id);
}

async function showOlder() {
  const page = await api.list(kPage, oldest);
  for (const video of page.data)
    if (!cards.has(video.id)) addCard(video, 'last');
  oldest = page.last_id ?? oldest;
  $('older').hidden = !page.has_more;
}

// ---------------------------------------------------------------- what a person does

async function make(form) {
  try {
    const video = await api.create(form);
    if (!cards.has(video.id)) addCard(video, 'first');
    $('empty').hidden = true;
    announce('The clip is in the queue.');
    refresh();
  } catch (error) {
    if (error.status !== 401) throw error;
    leave();
  }
}

const kActions = {
  async again(card) {
    composer.fill(card.video, card.video.input_reference ? await api.reference(card.video.id) : null);
    announce('The form has the settings of this clip.');
  },
  async cancel(card) {
    take(await api.cancel(card.video.id));
    card.title.focus();
    refresh();
  },
  async delete(card) {
    const dialog = $('confirm');
    dialog.returnValue = '';
    dialog.showModal();
    await new Promise((resolve) => dialog.addEventListener('close', resolve, {once: true}));
    if (dialog.returnValue !== 'delete') return;
    await api.remove(card.video.id);
    dropCard(card.video.id);
    announce('Deleted.');
  },
};

async function enter() {
  const {keys_required: keyed, authenticated, can_enhance: enhances} = await api.session();
  connected(true);
  if (keyed && !authenticated) return leave();
  $('sign-out').hidden = !keyed;
  $('enhance-field').hidden = !enhances;
  oldest = null;
  show('studio');
  await refresh();
}

$('sign-in').addEventListener('submit', async (event) => {
  event.preventDefault();
  $('key-error').textContent = '';
  try {
    await api.signIn($('key').value);
    $('key').value = '';
    await enter();
    $('prompt').focus();
  } catch (error) {
    $('key-error').textContent = error.status === 401 ? 'This is not a key of this server.' : error.message;
    $('key').select();
  }
});
$('sign-out').addEventListener('click', () => api.signOut().then(leave, report));
$('older').addEventListener('click', () => showOlder().catch(report));
// A picture dropped beside its field must not replace the page.
for (const name of ['dragover', 'drop'])
  window.addEventListener(name, (event) => { if (event.target.id !== 'input_reference') event.preventDefault(); });

composer.start(make);
(async function begin() {
  try {
    await enter();
  } catch (error) {
    connected(false);
    setTimeout(begin, kPollMs);
  }
})();
