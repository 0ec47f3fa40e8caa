// SPDX-License-Identifier: Apache-2.0
// `magi2 serve` of a tiny model on a free port.
import {execFileSync, spawn} from 'node:child_process';
import {mkdtempSync, rmSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';

const program = process.env.MAGI2;

export class Server {
  constructor(options = []) {
    this.directory = mkdtempSync(join(tmpdir(), 'magi2-page-'));
    this.root = join(this.directory, 'root');
    this.options = options;
    this.port = 0;
    execFileSync(program, ['init', this.root], {stdio: 'ignore'});
  }

  static keyed(key) {
    const server = new Server();
    const file = join(server.directory, 'keys');
    writeFileSync(file, `${key} test\n`, {mode: 0o600});
    server.options = ['--api-key-file', file];
    return server;
  }

  /** Also after a stop: the same jobs, on the same port. */
  async start() {
    this.process = spawn(
      program,
      ['serve', '-m', this.root, '--data', join(this.directory, 'data'), '--port', String(this.port),
       '--preview-share', '1', ...this.options],
      {env: {...process.env, OMP_WAIT_POLICY: 'passive'}, stdio: ['ignore', 'ignore', 'pipe']});
    this.port = await new Promise((resolve, reject) => {
      let log = '';
      this.process.stderr.on('data', (data) => {
        log += data;
        const found = log.match(/"event":"listening".*"port":(\d+)/);
        if (found) resolve(Number(found[1]));
      });
      this.process.on('exit', () => reject(new Error(log)));
    });
    this.url = `http://127.0.0.1:${this.port}/`;
    return this;
  }

  async stop() {
    const ended = new Promise((resolve) => this.process.on('exit', resolve));
    this.process.kill('SIGTERM');
    await ended;
  }

  async end() {
    await this.stop();
    rmSync(this.directory, {recursive: true, force: true});
  }
}
