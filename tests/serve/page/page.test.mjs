// SPDX-License-Identifier: Apache-2.0
// The page of `magi2 serve` in headless Chromium. Screenshots are left beside this file.
import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {join} from 'node:path';
import {after, before, test} from 'node:test';
import {chromium} from 'playwright-core';
import {Server} from './server.mjs';

const kSlowMs = 240_000;
const kAxe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
let browser, server;

before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: ['--no-sandbox', '--autoplay-policy=no-user-gesture-required'],
  });
  server = await new Server().start();
});
after(async () => {
  await browser?.close();
  await server?.end();
});

/** A fresh visitor. What the page logs as an error, or a policy violation, fails the test that opened it. */
async function visit(url = server.url, options = {}) {
  const context = await browser.newContext({viewport: {width: 1280, height: 900}, ...options});
  context.setDefaultTimeout(kSlowMs);
  const page = await context.newPage();
  page.faults = [];
  page.on('pageerror', (error) => page.faults.push(String(error)));
  page.on('console', (line) => {
    if (line.type() === 'error' && !/status of 4\d\d|ERR_CONNECTION_REFUSED|ERR_INCOMPLETE/.test(line.text()))
      page.faults.push(line.text());
  });
  await page.goto(url);
  return page;
}

async function leave(page) {
  assert.deepEqual(page.faults, []);
  await page.context().close();
}

const card = (page, prompt) => page.locator('#clips > li', {has: page.locator('h3', {hasText: prompt})});

async function fillIn(page, prompt, {seconds = '1', size = '64x48', steps = '3'} = {}) {
  await page.getByLabel('What should be seen and heard?').fill(prompt);
  await page.getByLabel('Size', {exact: true}).selectOption('custom');
  await page.getByLabel('Width and height, multiples of 16').fill(size);
  await page.getByLabel('Seconds').fill(seconds);
  await page.locator('#more').evaluate((details) => { details.open = true; });
  await page.getByLabel('Steps', {exact: true}).fill(steps);
}

async function completed(page, prompt) {
  const clip = card(page, prompt);
  await clip.and(page.locator('[data-status=completed]')).waitFor();
  return clip;
}

test('from a prompt to a playing video', async () => {
  const page = await visit();
  await page.getByText('Nothing yet.').waitFor();
  await page.screenshot({path: 'empty.png'});
  await fillIn(page, 'A fox in the snow', {seconds: '3', size: '160x96', steps: '60'});
  await page.getByRole('button', {name: 'Make the clip'}).click();
  const clip = card(page, 'A fox in the snow');
  await clip.locator('.screen img[src^="data:image/jpeg"]').waitFor();  // a frame of what the latents predict so far
  await clip.getByText(/ left$/).waitFor();
  assert.match(await page.title(), /^\d+ % · magi2$/);
  await page.screenshot({path: 'running.png'});
  const first = await clip.locator('.screen img').getAttribute('src');
  await page.waitForFunction(([id, src]) => {
    const image = document.querySelector(`[data-id="${id}"] .screen img`);
    return !image || image.src !== src;
  }, [await clip.getAttribute('data-id'), first]);
  await completed(page, 'A fox in the snow');
  const player = clip.locator('video');
  await player.evaluate((video) => video.play());
  await page.waitForFunction(() => document.querySelector('video').currentTime > 0.3);
  const {width, height, duration} = await player.evaluate(
    (v) => ({width: v.videoWidth, height: v.videoHeight, duration: v.duration}));
  assert.deepEqual([width, height], [160, 96]);
  assert.ok(Math.abs(duration - 3) < 0.2, `${duration} s`);
  await player.evaluate((video) => { video.pause(); video.currentTime = 2.5; });  // a range of the file
  await page.waitForFunction(() => !document.querySelector('video').seeking);
  await page.screenshot({path: 'playing.png'});
  const [download] = await Promise.all([page.waitForEvent('download'), clip.getByText('Download').click()]);
  assert.equal(readFileSync(await download.path()).subarray(4, 8).toString(), 'ftyp');
  await leave(page);
});

test('from a picture, and again with the same settings', async () => {
  const page = await visit();
  await fillIn(page, 'The sun of <Figure 1> sets');
  await page.getByLabel('Seed').fill('7');
  await page.locator('#input_reference').setInputFiles(join(server.root, 'example.png'));
  await page.locator('#picture img').waitFor();
  await page.getByRole('button', {name: 'Make the clip'}).click();
  const clip = await completed(page, 'The sun of <Figure 1> sets');
  await page.reload();
  await completed(page, 'The sun of <Figure 1> sets');
  assert.equal(await page.getByLabel('Seed').inputValue(), '');
  await clip.getByRole('button', {name: 'Make again'}).click();
  await page.locator('#picture img').waitFor();
  assert.equal(await page.getByLabel('Seed').inputValue(), '7');
  assert.equal(await page.getByLabel('Steps', {exact: true}).inputValue(), '3');
  assert.equal(await page.getByLabel('Width and height, multiples of 16').inputValue(), '64x48');
  await page.getByLabel('What should be seen and heard?').fill('The moon of <Figure 1> rises');
  await page.getByRole('button', {name: 'Make the clip'}).click();
  await completed(page, 'The moon of <Figure 1> rises');
  await leave(page);
});

test('cancelling, deleting, and keeping', async () => {
  const page = await visit();
  await fillIn(page, 'A very long one', {seconds: '10', size: '320x192', steps: '200'});
  await page.getByRole('button', {name: 'Make the clip'}).click();
  const clip = card(page, 'A very long one');
  await clip.and(page.locator('[data-status=in_progress]')).waitFor();
  await clip.getByRole('button', {name: /^Cancel/}).click();
  await clip.and(page.locator('[data-status=cancelled]')).waitFor();
  await page.waitForFunction(() => document.querySelector('#announcer').textContent.startsWith('Cancelled'));
  const dialog = page.locator('dialog[open]');
  await clip.getByRole('button', {name: /^Delete/}).click();
  await dialog.waitFor();
  await page.keyboard.press('Escape');
  assert.equal(await clip.count(), 1);
  await clip.getByRole('button', {name: /^Delete/}).click();
  await dialog.getByRole('button', {name: 'Delete'}).click();
  await clip.waitFor({state: 'detached'});
  await page.reload();
  await page.locator('#clips > li').first().waitFor();
  assert.equal(await clip.count(), 0);
  await leave(page);
});

test('errors stand beside their field', async () => {
  const page = await visit();
  await page.getByRole('button', {name: 'Make the clip'}).click();
  await page.locator('#prompt-error').waitFor();
  await fillIn(page, 'A fox', {size: '63x48'});
  await page.getByRole('button', {name: 'Make the clip'}).click();
  const size = page.getByLabel('Width and height, multiples of 16');
  await page.locator('#size-error').waitFor();
  assert.equal(await size.getAttribute('aria-invalid'), 'true');
  assert.ok(await size.evaluate((field) => field === document.activeElement));
  assert.match(await page.locator('#size-error').textContent(), /16/);
  await page.screenshot({path: 'error.png'});
  await leave(page);
});

test('markup in a prompt stays text', async () => {
  const page = await visit();
  const prompt = '<img src=x onerror="window.hurt=1"> & <b>fox</b>';
  await fillIn(page, prompt);
  await page.getByRole('button', {name: 'Make the clip'}).click();
  await completed(page, prompt);
  assert.equal(await page.evaluate(() => window.hurt), undefined);
  await leave(page);
});

test('by keyboard alone', async () => {
  const page = await visit();
  await page.locator('#studio').waitFor();
  const reach = async (selector) => {
    for (let i = 0; i < 40; ++i) {
      if (await page.evaluate((s) => document.activeElement.matches(s), selector)) return;
      await page.keyboard.press('Tab');
    }
    assert.fail(`Tab never reaches ${selector}`);
  };
  await reach('#prompt');
  await page.keyboard.type('By keyboard');
  await reach('#seconds');
  await page.keyboard.type('1');
  await reach('#more summary');
  await page.keyboard.press('Enter');
  await reach('#num_inference_steps');
  await page.keyboard.type('2');
  await reach('#composer .primary');
  await page.keyboard.press('Enter');
  await completed(page, 'By keyboard');
  await leave(page);
});

test('a bad key, then a good one', async () => {
  const keyed = await Server.keyed('sk-a-good-key-0123456789').start();
  try {
    const page = await visit(keyed.url);
    await page.getByRole('heading', {name: 'This server asks for a key'}).waitFor();
    await page.getByLabel('Key', {exact: true}).fill('sk-not-a-key');
    await page.getByRole('button', {name: 'Sign in'}).click();
    await page.getByText('This is not a key of this server.').waitFor();
    await page.screenshot({path: 'bad-key.png'});
    await page.getByLabel('Key', {exact: true}).fill('sk-a-good-key-0123456789');
    await page.getByRole('button', {name: 'Sign in'}).click();
    await page.locator('#studio').waitFor();
    assert.equal(await page.evaluate(() => document.cookie), '');  // HttpOnly
    await fillIn(page, 'Behind a key');
    await page.getByRole('button', {name: 'Make the clip'}).click();
    const clip = await completed(page, 'Behind a key');
    await clip.locator('video').evaluate((video) => video.play());
    await page.waitForFunction(() => document.querySelector('video').currentTime > 0.1);
    await page.getByRole('button', {name: 'Sign out'}).click();
    await page.getByLabel('Key', {exact: true}).waitFor();
    assert.equal(await clip.count(), 0);
    await leave(page);
  } finally {
    await keyed.end();
  }
});

test('the server goes and comes back', async () => {
  const restarted = await new Server().start();
  try {
    const page = await visit(restarted.url);
    await fillIn(page, 'Through a restart', {seconds: '3', size: '160x96', steps: '40'});
    await page.getByRole('button', {name: 'Make the clip'}).click();
    await card(page, 'Through a restart').and(page.locator('[data-status=in_progress]')).waitFor();
    await restarted.stop();
    await page.getByText('The server does not answer.').waitFor();
    await restarted.start();
    await completed(page, 'Through a restart');
    assert.equal(await page.locator('#connection').textContent(), '');
    await leave(page);
  } finally {
    await restarted.end();
  }
});

for (const [name, options] of Object.entries({
       'light': {colorScheme: 'light'},
       'dark': {colorScheme: 'dark'},
       'narrow': {viewport: {width: 320, height: 720}, colorScheme: 'light'},
     }))
  test(`readable for everybody: ${name}`, async () => {
    const page = await visit(server.url, {bypassCSP: true, ...options});
    await page.locator('#clips > li').first().waitFor();
    await page.locator('#more').evaluate((details) => { details.open = true; });
    await page.screenshot({path: `${name}.png`, fullPage: true});
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(overflow <= 0, `${overflow} pixels wider than the screen`);
    const cut = await page.evaluate(() => [...document.querySelectorAll('article *')].filter((element) => {
      const inner = element.getBoundingClientRect(), outer = element.closest('article').getBoundingClientRect();
      return inner.width > 0 && (inner.right > outer.right || inner.bottom > outer.bottom);
    }).map((element) => element.outerHTML.slice(0, 80)));
    assert.deepEqual(cut, []);
    await page.evaluate(kAxe);
    const {violations} = await page.evaluate(() => axe.run());
    assert.deepEqual(violations.map((v) => `${v.id}: ${v.nodes[0].html}`), []);
    await leave(page);
  });
