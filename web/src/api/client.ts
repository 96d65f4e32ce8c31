/** The only module that calls `fetch`. Every failure is an `ApiError` that carries a problem to show. */

import { read } from './read';
import type { AgentSessionList, AlertList, Annotation, AuditList, BlockList, CeilingList, EventList, FindingList, Health, ManagerList, NodeIpcList, Overview, Pin, PinList, PolicyList, PrefixList, Problem, PushList, RateList, SeriesAnswer, Session, Tenant, TenantList, TierList, TokenList, TokenizerList, UsageReport } from './types';

const READ_TIMEOUT_MS = 8_000;
/** A change waits up to 30 s for others before it, and must not be given up while the server makes it. */
const CHANGE_TIMEOUT_MS = 45_000;
/** Most items of a page. */
const MAX_PAGE = 1_000;

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

export interface SeriesQuery {
  names: readonly string[];
  node?: string;
  tenant?: string;
  range_s: number;
}

/** Points for charts, and the marks of the same time. */
export function getSeries({ names, node = '', tenant = '', range_s }: SeriesQuery): Promise<SeriesAnswer> {
  const params = query({ node, tenant, range_s });
  return get<SeriesAnswer>(`api/v1/series?${names.map((name) => `name=${name}`).join('&')}&${params}`);
}

export function getEvents(of: Record<string, string | number>): Promise<EventList> {
  return get<EventList>(`api/v1/events/history?${query(of)}`);
}

export function getPrefixes(limit: number, tenant = ''): Promise<PrefixList> {
  return get<PrefixList>(`api/v1/prefixes?${query({ limit, tenant })}`);
}

export function getTenants(cursor: string): Promise<TenantList> {
  return get<TenantList>(`api/v1/tenants?${query({ limit: MAX_PAGE, cursor })}`);
}

export function getTenant(name: string): Promise<Tenant> {
  return get<Tenant>(`api/v1/tenants/${encodeURIComponent(name)}`);
}

export function getPins(cursor: string, of: Record<string, string | number> = {}): Promise<PinList> {
  return get<PinList>(`api/v1/pins?${query({ limit: MAX_PAGE, ...of, cursor })}`);
}

export function getPin(name: string): Promise<Pin> {
  return get<Pin>(`api/v1/pins/${encodeURIComponent(name)}`);
}

export function getBlocks(of: Record<string, string | number>): Promise<BlockList> {
  return get<BlockList>(`api/v1/blocks?${query(of)}`);
}

/** Sessions of a tenant, node by node. */
export function getSessions(tenant: string, cursor: string): Promise<AgentSessionList> {
  return get<AgentSessionList>(`api/v1/sessions?${query({ limit: MAX_PAGE, tenant, cursor })}`);
}

export function getPushes(of: Record<string, string | number>): Promise<PushList> {
  return get<PushList>(`api/v1/pushes?${query(of)}`);
}

export function getFindings(of: Record<string, string | number>): Promise<FindingList> {
  return get<FindingList>(`api/v1/findings?${query(of)}`);
}

/** Changes since a time, in Unix seconds, that have all of these tags; oldest first. */
export function getAnnotations(from: number, limit: number, tags = ''): Promise<Annotation[]> {
  return get<Annotation[]>(`api/v1/annotations?${query({ from: Math.round(from * 1000), limit, tags })}`);
}

export function getManagers(): Promise<ManagerList> {
  return get<ManagerList>('api/v1/managers');
}

export function getTokens(cursor: string): Promise<TokenList> {
  return get<TokenList>(`api/v1/tokens?${query({ limit: MAX_PAGE, cursor })}`);
}

export function getHealth(): Promise<Health> {
  return get<Health>('healthz');
}

export function getTiers(): Promise<TierList> {
  return get<TierList>(`api/v1/tiers?limit=${MAX_PAGE}`);
}

export function getPolicies(): Promise<PolicyList> {
  return get<PolicyList>(`api/v1/policies?limit=${MAX_PAGE}`);
}

export function getCeilings(): Promise<CeilingList> {
  return get<CeilingList>(`api/v1/ceilings?limit=${MAX_PAGE}`);
}

export function getRates(): Promise<RateList> {
  return get<RateList>(`api/v1/rates?limit=${MAX_PAGE}`);
}

export function getTokenizers(): Promise<TokenizerList> {
  return get<TokenizerList>(`api/v1/tokenizers?limit=${MAX_PAGE}`);
}

export function getIpc(): Promise<NodeIpcList> {
  return get<NodeIpcList>('api/v1/ipc');
}

/** Parameters that say nothing are left out. */
export function query(of: Record<string, string | number>): string {
  return new URLSearchParams(Object.entries(of).flatMap(([name, value]) => (value === '' ? [] : [[name, String(value)]]))).toString();
}

export function getUsage(of: Record<string, string | number>): Promise<UsageReport> {
  return get<UsageReport>(`api/v1/usage?${query(of)}`);
}

export function getAudit(of: Record<string, string | number>): Promise<AuditList> {
  return get<AuditList>(`api/v1/audit?${query(of)}`);
}

export function getAlerts(of: Record<string, string | number>): Promise<AlertList> {
  return get<AlertList>(`api/v1/alerts?${query(of)}`);
}

export function getSession(): Promise<Session> {
  return get<Session>('api/v1/session');
}

/** The browser keeps the cookie that comes with the answer; this page never sees it. */
export function logIn(token: string): Promise<Session> {
  return send<Session>('POST', 'api/v1/session', { 'content-type': 'application/json' }, JSON.stringify({ token }));
}

export async function logOut(csrf: string): Promise<void> {
  await ask('DELETE', 'api/v1/session', { 'x-csrf-token': csrf });
}

function get<T>(path: string): Promise<T> {
  return send<T>('GET', path);
}

async function ask(method: string, path: string, headers: Record<string, string> = {}, body?: string): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers: { accept: 'application/json, application/problem+json', ...headers },
      body: body ?? null,
      cache: 'no-store',
      signal: AbortSignal.timeout(limitOf(method)),
    });
  } catch (error) {
    throw new ApiError(unreachable(error, method));
  }
  if (!response.ok) throw new ApiError(await problemOf(response));
  return response;
}

/** Characters that cannot be seen are escaped in the answer. Raises ApiError. */
export function send<T>(method: string, path: string, headers?: Record<string, string>, body?: string): Promise<T> {
  return decoded(method, path, headers, body, read<T>);
}

/** As `send`, with the text of the answer as it is; an answer without a body is null. */
export function sendRaw<T>(method: string, path: string, headers?: Record<string, string>, body?: string): Promise<T> {
  return decoded(method, path, headers, body, (text) => (text ? JSON.parse(text) : null) as T);
}

async function decoded<T>(
  method: string,
  path: string,
  headers: Record<string, string> | undefined,
  body: string | undefined,
  decode: (text: string) => T,
): Promise<T> {
  const response = await ask(method, path, headers, body);
  const text = await response.text().catch((error: unknown) => {
    throw new ApiError(unreachable(error, method));
  });
  try {
    return decode(text);
  } catch {
    throw new ApiError({
      type: 'about:blank',
      title: 'The answer is not JSON',
      status: response.status,
      detail: `${path} answered something that is not Larder's API. Is a proxy in between?`,
    });
  }
}

function limitOf(method: string): number {
  return method === 'GET' ? READ_TIMEOUT_MS : CHANGE_TIMEOUT_MS;
}

function unreachable(error: unknown, method: string): Problem {
  const late = error instanceof DOMException && error.name === 'TimeoutError';
  return {
    type: 'about:blank',
    title: late ? 'The API did not answer in time' : 'The API is unreachable',
    status: 0,
    detail: late
      ? `No answer within ${limitOf(method) / 1000} seconds.`
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
    const body = read<unknown>(await response.text());
    return typeof body === 'object' && body !== null ? { ...plain, ...body } : plain;
  } catch {
    return plain;
  }
}
