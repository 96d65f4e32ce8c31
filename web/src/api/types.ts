/** The shapes of the API that the page reads, by the page's names. Sizes are bytes, times are Unix seconds. */

import type { components } from './types.generated';

type Schemas = components['schemas'];

export type Overview = Schemas['Overview'];
export type History = Schemas['Series'];
export type PoolStats = Schemas['PoolStats'];
export type Tenant = Schemas['TenantAnswer'];
export type Pin = Schemas['PinAnswer'];
export type Node = Schemas['NodeAnswer'];
export type CacheStart = Schemas['CacheStart'];
export type NodeState = Node['state'];
export type Policy = Schemas['PolicyAnswer'];
export type PolicyStats = Schemas['PolicyStats'];
export type PrefixList = Schemas['PrefixList'];
export type Engine = Schemas['EngineStats'];
export type Gateway = Schemas['NodeGateway'];
export type GpuCopyPool = Schemas['GpuCopyPoolStats'];
export type Session = Schemas['SessionAnswer'];
export type LarderEvent = Schemas['LarderEvent'];
export type UsageReport = Schemas['UsageReport'];
export type UsageCounts = Schemas['UsageCounts'];
export type AuditList = Schemas['AuditList'];
export type AuditEntry = Schemas['AuditEntry'];

/** RFC 9457: the API's, or one that the client makes when there was no answer (status 0). */
export type Problem = Pick<Schemas['Problem'], 'type' | 'title' | 'status'> & Partial<Schemas['Problem']>;
