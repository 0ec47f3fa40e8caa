// SPDX-License-Identifier: Apache-2.0
// One clip of the gallery: its screen (nothing yet, running frames, the player), its facts and its buttons.

import {contentUrl} from '/api.js';

const kStages = {
  'enhance': 'Elaborating the prompt',
  'load text encoder': 'Loading the text encoder',
  'encode text': 'Reading the prompt',
  'encode images': 'Looking at the picture',
  'load preview': 'Loading the model',
  'denoise': 'Denoising',
  'load refiner': 'Loading the refiner',
  'refine': 'Refining',
  'decode audio': 'Decoding the sound',
  'decode video': 'Decoding the frames',
};

export const isActive = (video) => video.status === 'queued' || video.status === 'in_progress';

/** No finer than an estimate can be. */
function duration(seconds) {
  const s = Math.max(1, Math.round(seconds));
  if (s < 20) return `${s} s`;
  if (s < 60) return `${Math.round(s / 5) * 5} s`;
  if (s < 600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60 / 10) * 10} s`;
  if (s < 3600) return `${Math.round(s / 60)} min`;
  return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
}

function when(seconds) {
  const date = new Date(seconds * 1000), now = new Date();
  if (date.toDateString() === now.toDateString()) return date.toLocaleTimeString([], {timeStyle: 'short'});
  const year = date.getFullYear() === now.getFullYear() ? undefined : 'numeric';
  return date.toLocaleString([], {month: 'short', day: 'numeric', year, hour: 'numeric', minute: '2-digit'});
}

function stateOf(video) {
  switch (video.status) {
    case 'queued':
      return video.queue_position > 1 ? `Waiting, number ${video.queue_position} in the queue` : 'Next in the queue';
    case 'in_progress': {
      const parts = [kStages[video.stage] ?? video.stage ?? 'Starting'];
      if (video.steps > 1) parts[0] += `, ${video.step} of ${video.steps}`;
      if (video.seconds_left > 0) parts.push(`about ${duration(video.seconds_left)} left`);
      return parts.join(' · ');
    }
    case 'failed':
      return `Failed: ${video.error?.message ?? 'no reason was given'}`;
    case 'cancelled':
      return 'Cancelled';
    default:
      return '';
  }
}

function factsOf(video) {
  const parts = [video.size.replace('x', '×'), `${video.seconds} s`, `seed ${video.seed}`];
  if (video.num_inference_steps) parts.push(`${video.num_inference_steps} steps`);
  if (!video.audio) parts.push('silent');
  parts.push(when(video.created_at));
  return parts.flatMap((part, i) => {
    const span = document.createElement('span');  // lines break between parts alone
    span.textContent = part;
    return i ? [' · ', span] : [span];
  });
}

export class Card {
  constructor(video, act) {
    this.element = document.getElementById('clip').content.firstElementChild.cloneNode(true);
    const find = (selector) => this.element.querySelector(selector);
    this.screen = find('.screen');
    this.state = find('.state');
    this.progress = find('progress');
    this.title = find('h3');
    this.buttons = Object.fromEntries(
      [...this.element.querySelectorAll('[data-action]')].map((button) => [button.dataset.action, button]));
    for (const name of ['again', 'cancel', 'delete'])
      this.buttons[name].addEventListener('click', () => act(name, this));
    this.element.dataset.id = video.id;
    this.title.textContent = video.prompt;
    this.title.title = video.prompt;
    find('.facts').replaceChildren(...factsOf(video));
    this.progress.setAttribute('aria-label', `Progress of “${video.prompt.slice(0, 60)}”`);
    for (const [name, button] of Object.entries(this.buttons))
      button.setAttribute('aria-label', `${button.textContent}: ${video.prompt.slice(0, 60)}`);
    this.buttons.download.href = contentUrl(video.id);
    this.buttons.download.download = `${video.id}.mp4`;
    this.update(video);
  }

  /** Takes over what is new in `change`, a video object or a part of one. */
  update(change) {
    this.video = {...this.video, ...change};
    const video = this.video;
    const active = isActive(video);
    this.element.dataset.status = video.status;
    this.state.textContent = stateOf(video);
    this.state.classList.toggle('failed', video.status === 'failed');
    this.progress.hidden = video.status !== 'in_progress';
    this.progress.value = video.progress;
    this.buttons.cancel.hidden = !active;
    this.buttons.download.hidden = video.status !== 'completed';
    this.screen.classList.toggle('working', video.status === 'in_progress' && !this.screen.firstElementChild);
    if (video.status === 'completed') this.showPlayer();
    else if (!active) this.showNothing();
  }

  showFrame(dataUrl) {
    if (!isActive(this.video)) return;
    let image = this.screen.querySelector('img');
    if (!image) {
      image = document.createElement('img');
      image.alt = 'A frame of the clip so far';
      this.screen.replaceChildren(image);
      this.screen.classList.remove('working');
    }
    image.src = dataUrl;
  }

  showPlayer() {
    if (this.screen.querySelector('video')) return;
    const player = document.createElement('video');
    player.controls = true;
    player.loop = true;
    player.playsInline = true;
    player.preload = 'none';
    player.poster = contentUrl(this.video.id, 'thumbnail');
    player.src = contentUrl(this.video.id);
    player.setAttribute('aria-label', this.video.prompt);
    this.screen.replaceChildren(player);
  }

  showNothing() {
    this.screen.classList.remove('working');
    const line = document.createElement('p');
    line.textContent = this.video.status === 'failed' ? 'No clip' : 'Stopped';
    this.screen.replaceChildren(line);
  }
}
