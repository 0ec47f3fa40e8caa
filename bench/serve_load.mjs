// SPDX-License-Identifier: Apache-2.0
// What clients cost a running job: `clients` that poll once a second and as many that stream events, while a clip is
// made; the same clip alone before and after. Prints times of answers, step times, and the CPU time of the server's HTTP threads.
// usage: node bench/serve_load.mjs build/magi2 [clients=100] [steps=40] [size=256x160] [seconds=4]
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [program, clients = '100', steps = '40', size = '256x160', seconds = '4'] = process.argv.slice(2);
const directory = mkdtempSync(join(tmpdir(), 'magi2-load-'));
execFileSync(program, ['init', join(directory, 'root')], { stdio: 'ignore' });
const server = spawn(program, ['serve', '-m', join(directory, 'root'), '--data', join(directory, 'data'), '--port', '0'], {
  env: { ...process.env, OMP_WAIT_POLICY: 'passive' },
  stdio: ['ignore', 'ignore', 'pipe'],
});
let log = '';
server.stderr.setEncoding('utf8');
const port = await new Promise((resolve) =>
  server.stderr.on('data', (data) => {
    if (log === null) return;
    log += data;
    const found = log.match(/"port":(\d+)/);
    if (!found) return;
    log = null;
    resolve(Number(found[1]));
  }),
);

const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
const ask = (method, path, body) =>
  new Promise((resolve, reject) => {
    const start = process.hrtime.bigint();
    const request = http.request(
      { agent, host: '127.0.0.1', port, method, path, headers: body ? { 'Content-Type': 'application/json' } : {} },
      (response) => {
        let text = '';
        response.setEncoding('utf8');
        response.on('data', (data) => (text += data));
        response.on('end', () => resolve({ text, ms: Number(process.hrtime.bigint() - start) / 1e6 }));
      },
    );
    request.on('error', reject);
    request.end(body && JSON.stringify(body));
  });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const metric = (text, name) =>
  Number(text.split('\n').find((line) => line.startsWith(`${name} `))?.slice(name.length + 1));

/** CPU seconds of the threads that answer. */
const httpSeconds = () => {
  let ticks = 0;
  for (const task of readdirSync(`/proc/${server.pid}/task`)) {
    const stat = readFileSync(`/proc/${server.pid}/task/${task}/stat`, 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    if (stat.includes('(MHD-')) ticks += Number(fields[11]) + Number(fields[12]);
  }
  return ticks / 100;
};

async function run(count) {
  const before = (await ask('GET', '/metrics')).text;
  const id = JSON.parse(
    (await ask('POST', '/v1/videos', { prompt: 'A fox.', size, seconds, num_inference_steps: Number(steps) })).text,
  ).id;
  const times = [];
  let over = false;
  let events = 0;
  for (let i = 0; i < count; ++i) {
    const poll = async () => {
      await sleep((1000 * i) / count);
      while (!over) {
        const { ms } = await ask('GET', `/v1/videos/${id}`);
        times.push(ms);
        await sleep(1000 - ms);
      }
    };
    poll();
    http.get({ agent: false, host: '127.0.0.1', port, path: `/v1/videos/${id}/events` }, (response) =>
      response.on('data', (data) => (events += data.toString('latin1').split('event: ').length - 1)),
    );
  }
  const cpu = httpSeconds();
  const start = Date.now();
  while (JSON.parse((await ask('GET', `/v1/videos/${id}`)).text).status !== 'completed') await sleep(count ? 1000 : 200);
  over = true;
  const wall = (Date.now() - start) / 1000;
  const busy = httpSeconds() - cpu;
  const after = (await ask('GET', '/metrics')).text;
  const stepSeconds =
    (metric(after, 'magi2_step_seconds_total') - metric(before, 'magi2_step_seconds_total')) /
    (metric(after, 'magi2_steps_total') - metric(before, 'magi2_steps_total'));
  const bucket = (text, bound) => metric(text, `magi2_http_seconds_bucket{route="/v1/videos/{id}",le="${bound}"}`) || 0;
  const within = (bound) => bucket(after, bound) - bucket(before, bound);
  const previews = metric(after, 'magi2_preview_seconds_total') - metric(before, 'magi2_preview_seconds_total');
  const denoising = metric(after, 'magi2_step_seconds_total') - metric(before, 'magi2_step_seconds_total');
  times.sort((a, b) => a - b);
  const quantile = (q) => (times.length ? times[Math.min(times.length - 1, Math.floor(q * times.length))].toFixed(1) : '-');
  console.log(
    `${count} + ${count} clients: ${(1000 * stepSeconds).toFixed(1)} ms a step, job ${wall.toFixed(1)} s; ` +
      `${times.length} answers, median ${quantile(0.5)} ms, 99 % within ${quantile(0.99)} ms, all within ${quantile(1)} ms; ` +
      `${events} events; HTTP threads ${((100 * busy) / wall).toFixed(2)} % of one core, ` +
      `${((100 * within('0.05')) / within('+Inf')).toFixed(2)} % of its answers within 50 ms by its own clock; ` +
      `preview frames ${((100 * previews) / denoising).toFixed(1)} % of the steps' time`,
  );
  await sleep(300);
}

await run(0);
await run(0);
await run(Number(clients));
await run(0);
server.kill('SIGTERM');
await new Promise((resolve) => server.on('exit', resolve));
rmSync(directory, { recursive: true });
process.exit(0);
