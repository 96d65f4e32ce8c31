/** The only module that calls `fetch`. Every failure is an `ApiError` that carries a problem to show. */

import type { History, Overview, PrefixList, Problem } from './types';

const TIMEOUT_MS = 8_000;

export class ApiError extends Error {
  readonly problem: Problem;

  constructor(problem: Problem) {
    super(problem.detail ?? problem.title);
    this.name = 'ApiError';
    this.problem = problem;
  }
}

export function getOverview(): Promise<Overview> {
  return get<Overview>('api/v1/overview');
}

export function getHistory(seconds: number): Promise<History> {
  return get<History>(`api/v1/overview/history?seconds=${seconds}`);
}

export function getPrefixes(limit: number): Promise<PrefixList> {
  return get<PrefixList>(`api/v1/prefixes?limit=${limit}`);
}

async function get<T>(path: string): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, {
      headers: { accept: 'application/json, application/problem+json' },
      cache: 'no-store',
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch (error) {
    throw new ApiError(unreachable(error));
  }
  if (!response.ok) throw new ApiError(await problemOf(response));
  try {
    return (await response.json()) as T;
  } catch {
    throw new ApiError({
      type: 'about:blank',
      title: 'The answer is not JSON',
      status: response.status,
      detail: `${path} answered something that is not Larder's API. Is a proxy in between?`,
    });
  }
}

function unreachable(error: unknown): Problem {
  const late = error instanceof DOMException && error.name === 'TimeoutError';
  return {
    type: 'about:blank',
    title: late ? 'The API did not answer in time' : 'The API is unreachable',
    status: 0,
    detail: late
      ? `No answer within ${TIMEOUT_MS / 1000} seconds.`
      : 'No connection to the management plane. Is `larder up` running, and does a proxy or firewall let it through?',
  };
}

async function problemOf(response: Response): Promise<Problem> {
  const plain: Problem = {
    type: 'about:blank',
    title: response.statusText || 'The API answered with an error',
    status: response.status,
  };
  if (!(response.headers.get('content-type') ?? '').includes('json')) return plain;
  try {
    const body: unknown = await response.json();
    return typeof body === 'object' && body !== null ? { ...plain, ...body } : plain;
  } catch {
    return plain;
  }
}
