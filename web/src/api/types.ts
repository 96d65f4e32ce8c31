/** The shapes of the API that the page reads, by the page's names. Sizes are bytes, times are Unix seconds. */

import type { components } from './types.generated';

type Schemas = components['schemas'];

export type Overview = Schemas['Overview'];
export type Finding = Schemas['Finding'];
export type FindingList = Schemas['FindingList'];
export type SeriesAnswer = Schemas['SeriesAnswer'];
export type SeriesMark = Schemas['Mark'];
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
export type Tier = Schemas['TierStats'];
export type TierRecord = Schemas['TierAnswer'];
export type TierList = Schemas['TierList'];
export type Quota = Schemas['QuotaAnswer'];
export type Ceiling = Schemas['CeilingAnswer'];
export type CeilingList = Schemas['CeilingList'];
export type Rate = Schemas['RateAnswer'];
export type RateList = Schemas['RateList'];
export type Tokenizer = Schemas['TokenizerAnswer'];
export type TokenizerList = Schemas['TokenizerList'];
/** What only records that nodes receive have. */
type NotPushed = { status?: undefined; generation?: undefined; managed_by?: undefined; selector?: undefined };
export type RecordAnswer = Quota | Pin | Policy | TierRecord | ((Ceiling | Rate | Tokenizer) & NotPushed);
export type PolicyList = Schemas['PolicyList'];
export type ApplyAnswer = Schemas['ApplyAnswer'];
export type RecordChange = Schemas['RecordChange'];
export type DryRunAnswer = Schemas['DryRunAnswer'];
export type NodeVerdict = Schemas['NodeVerdict'];
export type ExpelAnswer = Schemas['ExpelAnswer'];
export type NodeIpc = Schemas['NodeIpc'];
export type NodeIpcList = Schemas['NodeIpcList'];
export type PinKeys = Schemas['PinKeys'];
export type TenantList = Schemas['TenantList'];
export type PinList = Schemas['PinList'];
export type Block = Schemas['BlockAnswer'];
export type BlockList = Schemas['BlockList'];
export type ActionAnswer = Schemas['ActionAnswer'];
export type Push = Schemas['PushAnswer'];
export type PushList = Schemas['PushList'];
export type Annotation = Schemas['Annotation'];
export type ManagerList = Schemas['ManagerList'];
export type Token = Schemas['TokenAnswer'];
export type TokenList = Schemas['TokenList'];
export type NewToken = Schemas['TokenMade'];
export type Health = Schemas['Health'];
export type Alert = Schemas['AlertAnswer'];
export type Session = Schemas['SessionAnswer'];
/** A conversation that requests name; `Session` is a login. */
export type AgentSession = Schemas['AgentSessionAnswer'];
export type AgentSessionList = Schemas['AgentSessionList'];
export type SessionActionAnswer = Schemas['SessionActionAnswer'];
export type NodeError = Schemas['NodeError'];
export type LarderEvent = Schemas['LarderEvent'];
export type EventList = Schemas['EventList'];
export type UsageReport = Schemas['UsageReport'];
export type UsageCounts = Schemas['UsageCounts'];
export type AlertList = Schemas['AlertList'];
export type Change = Schemas['ChangeAnswer'];
export type AuditList = Schemas['AuditList'];
export type AuditEntry = Schemas['AuditEntry'];

/** RFC 9457: the API's, or one that the client makes when there was no answer (status 0). */
export type Problem = Pick<Schemas['Problem'], 'type' | 'title' | 'status'> & Partial<Schemas['Problem']>;
