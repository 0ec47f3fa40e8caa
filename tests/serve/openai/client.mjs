// SPDX-License-Identifier: Apache-2.0
// OpenAI's own client, unchanged, against `magi2 serve`. usage: node client.mjs MAGI2 DIRECTORY
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI, { toFile } from 'openai';

globalThis.File ??= (await import('node:buffer')).File; // what the client asks for on Node.js 18

const [program, directory] = process.argv.slice(2);
const root = join(directory, 'root');
execFileSync(program, ['init', root], { stdio: 'ignore' });
const keys = join(directory, 'keys');
writeFileSync(keys, 'sk-test-0123456789abcdef test\n', { mode: 0o600 });

const server = spawn(program, ['serve', '-m', root, '--data', join(directory, 'data'), '--port', '0', '--api-key-file', keys], {
  env: { ...process.env, OMP_WAIT_POLICY: 'passive' },
  stdio: ['ignore', 'ignore', 'pipe'],
});
let log = '';
const port = await new Promise((resolve, reject) => {
  server.stderr.on('data', (data) => {
    log += data;
    const found = log.match(/"event":"listening".*"port":(\d+)/);
    if (found) resolve(found[1]);
  });
  server.on('exit', () => reject(new Error(log)));
});

try {
  const client = new OpenAI({ apiKey: 'sk-test-0123456789abcdef', baseURL: `http://127.0.0.1:${port}/v1`, maxRetries: 0 });
  const wait = async (video) => {
    while (video.status === 'queued' || video.status === 'in_progress') {
      await new Promise((resolve) => setTimeout(resolve, 100));
      video = await client.videos.retrieve(video.id);
    }
    return video;
  };

  const models = await client.models.list();
  assert.deepEqual(models.data.map((m) => m.id), ['magi-2-preview']);

  const first = await client.videos.create({ model: 'magi-2-preview', prompt: 'A fox.', seconds: '1', size: '64x48' });
  assert.equal(first.object, 'video');
  assert.equal(first.status, 'queued');
  const done = await wait(first);
  assert.equal(done.status, 'completed', JSON.stringify(done));
  assert.equal(done.progress, 100);
  assert.equal(done.seconds, '1');
  assert.equal(done.size, '64x48');
  assert.ok(done.completed_at >= done.created_at && done.expires_at > done.completed_at);

  const picture = readFileSync(join(root, 'example.png'));
  const second = await client.videos.create({
    prompt: 'The sun of <Figure 1> sets.',
    seconds: '1',
    size: '64x48',
    input_reference: await toFile(picture, 'example.png', { type: 'image/png' }),
  });
  assert.equal((await wait(second)).status, 'completed');

  const ids = [];
  for await (const video of client.videos.list({ limit: 1, order: 'asc' })) ids.push(video.id);
  assert.deepEqual(ids, [first.id, second.id]);

  const mp4 = Buffer.from(await (await client.videos.downloadContent(first.id)).arrayBuffer());
  assert.equal(mp4.subarray(4, 8).toString(), 'ftyp');
  const jpeg = Buffer.from(await (await client.videos.downloadContent(first.id, { variant: 'thumbnail' })).arrayBuffer());
  assert.equal(jpeg.readUInt16BE(0), 0xffd8);

  const wrong = (fields) => client.videos.create({ prompt: 'A fox.', ...fields });
  await assert.rejects(wrong({ model: 'sora-2' }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'model' && e.code === 'model_not_found');
  await assert.rejects(wrong({ size: '63x48' }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'size');
  const stranger = new OpenAI({ apiKey: 'sk-other-0123456789', baseURL: client.baseURL, maxRetries: 0 });
  await assert.rejects(stranger.videos.list(), OpenAI.AuthenticationError);

  for (const id of ids) assert.deepEqual(await client.videos.delete(id), { id, object: 'video.deleted', deleted: true });
  await assert.rejects(client.videos.retrieve(first.id), OpenAI.NotFoundError);
  assert.deepEqual((await client.videos.list()).data, []);
  console.log('OpenAI client: created, polled, listed, downloaded, refused and deleted');
} finally {
  server.removeAllListeners('exit');
  const ended = new Promise((resolve) => server.on('close', resolve));
  server.kill('SIGTERM');
  assert.equal(await ended, 0, 'the server ends well');
  for (const line of log.trim().split('\n')) assert.ok(JSON.parse(line).ts, line);
  for (const secret of ['sk-', 'fox', 'Figure']) assert.ok(!log.includes(secret), `"${secret}" in the log`);
}
