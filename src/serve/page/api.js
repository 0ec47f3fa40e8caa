// SPDX-License-Identifier: Apache-2.0
// The server's API as functions. An answer that is not a success becomes an ApiError with the field it names.

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.field = error?.param ?? null;
  }
}

/** The server could not be reached: it restarts, or the network is down. */
export class Unreachable extends Error {}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, {credentials: 'same-origin', ...options});
  } catch {
    throw new Unreachable('The server does not answer.');
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ApiError(response.status, body?.error);
}

const json = async (path, options) => (await request(path, options)).json();
const video = (id) => `/v1/videos/${encodeURIComponent(id)}`;

export const session = () => json('/v1/session');
export const signIn = (key) =>
  json('/v1/session',
       {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify({key})});
export const signOut = () => request('/v1/session', {method: 'DELETE'});

export const create = (form) => json('/v1/videos', {method: 'POST', body: form});
export const list = (limit, after) =>
  json(`/v1/videos?limit=${limit}${after ? `&after=${encodeURIComponent(after)}` : ''}`);
export const cancel = (id) => json(`${video(id)}/cancel`, {method: 'POST'});
export const remove = (id) => json(video(id), {method: 'DELETE'});
export const contentUrl = (id, variant) => `${video(id)}/content${variant ? `?variant=${variant}` : ''}`;
export const eventsUrl = (id) => `${video(id)}/events`;
export const reference = async (id) => (await request(contentUrl(id, 'reference'))).blob();
