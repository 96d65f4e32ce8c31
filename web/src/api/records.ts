/** Changes of records, dry runs of them, and actions on engines. Changes name the state that they were made from. */

import { send, sendRaw } from './client';
import type { ApplyAnswer, DryRunAnswer, ExpelAnswer, PinKeys, RecordAnswer } from './types';
import type { Json, RecordType } from '../model/records/fields';

const JSON_TYPE = { 'content-type': 'application/json' };

/** The token that changes with a session must send. */
export interface Signed {
  csrf: string;
}

/** Headers of a change. */
export function signed({ csrf }: Signed): Record<string, string> {
  return csrf ? { ...JSON_TYPE, 'x-csrf-token': csrf } : JSON_TYPE;
}

function pathOf(type: RecordType, name: string): string {
  return `api/v1/${type}/${encodeURIComponent(name)}`;
}

/** The record with its text as it is stored, because forms send back the fields that they do not change. */
export function getRecord(type: RecordType, name: string): Promise<RecordAnswer> {
  return sendRaw<RecordAnswer>('GET', pathOf(type, name));
}

/** Create a record; refused if it exists. */
export function createRecord(by: Signed, type: RecordType, name: string, body: Json): Promise<RecordAnswer> {
  return sendRaw<RecordAnswer>('PUT', pathOf(type, name), { ...signed(by), 'if-none-match': '*' }, JSON.stringify(body));
}

/** Change fields of the record in the state of this ETag; refused if it has changed since. */
export function changeRecord(by: Signed, type: RecordType, name: string, etag: string, patch: Json): Promise<RecordAnswer> {
  const headers = { ...signed(by), 'content-type': 'application/merge-patch+json', 'if-match': etag };
  return sendRaw<RecordAnswer>('PATCH', pathOf(type, name), headers, JSON.stringify(patch));
}

/** Delete the record in the state of this ETag; refused if it has changed since. */
export async function deleteRecord(by: Signed, type: RecordType, name: string, etag: string): Promise<void> {
  await sendRaw<unknown>('DELETE', pathOf(type, name), { ...signed(by), 'if-match': etag });
}

/** What storing the record would change; nothing is stored. */
export function tryRecord(by: Signed, type: RecordType, name: string, body: Json, takeOver: boolean): Promise<ApplyAnswer> {
  const document = { apiVersion: 'larder/v1', [type]: { [name]: body } };
  return sendRaw<ApplyAnswer>('POST', 'api/v1/apply', signed(by), JSON.stringify({ document, dry_run: true, take_over: takeOver }));
}

/**
 * Return the record as the change would make it, without storing it: for types that documents do not have, and for an
 * existing pin. Without an ETag, the record is new.
 */
export function tryAlone(by: Signed, type: RecordType, name: string, etag: string | null, body: Json): Promise<RecordAnswer> {
  const path = `${pathOf(type, name)}?dry_run=true`;
  if (etag === null) return sendRaw<RecordAnswer>('PUT', path, { ...signed(by), 'if-none-match': '*' }, JSON.stringify(body));
  const headers = { ...signed(by), 'content-type': 'application/merge-patch+json', 'if-match': etag };
  return sendRaw<RecordAnswer>('PATCH', path, headers, JSON.stringify(body));
}

/** What the nodes say to the record; none applies it. */
export function tryOnNodes(by: Signed, type: RecordType, name: string, body: Json): Promise<DryRunAnswer> {
  return send<DryRunAnswer>('POST', 'api/v1/actions/dry-run', signed(by), JSON.stringify({ [type]: { [name]: body } }));
}

/** Keys of a pin, with which it can be created again. */
export async function getPinKeys(name: string): Promise<string[]> {
  return (await sendRaw<PinKeys>('GET', `${pathOf('pins', name)}/keys`)).keys;
}

export interface Expulsion {
  on: boolean;
  force: boolean;
  kill: boolean;
}

export function expelEngine(by: Signed, node: string, client: number, how: Expulsion): Promise<ExpelAnswer> {
  return send<ExpelAnswer>('POST', `api/v1/nodes/${encodeURIComponent(node)}/engines/${client}/expel`, signed(by), JSON.stringify(how));
}
