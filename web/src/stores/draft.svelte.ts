/**
 * A change of one record while it is made: typed, checked by a dry run, saved in the state that it was made from, and
 * followed until the nodes have acknowledged it.
 */

import { ApiError } from '../api/client';
import { NAMES } from '../api/forms.generated';
import { changeRecord, createRecord, deleteRecord, getRecord, tryAlone, tryOnNodes, tryRecord, type Signed } from '../api/records';
import { mergePatch, parsedValue, placed, shownValue, type Faults, type Json, type RecordType, type Value, type Values } from '../model/records/fields';
import { faultOf } from '../model/records/rules';
import { SOURCES, bodyOf, fieldsOf, isPushed, type Source } from '../model/records/records';
import { NONE, sizeOf } from '../format';
import { worded } from '../model/records/worded';
import type { NodeVerdict, Problem, RecordAnswer } from '../api/types';

export interface DraftDeps {
  getRecord: typeof getRecord;
  createRecord: typeof createRecord;
  changeRecord: typeof changeRecord;
  deleteRecord: typeof deleteRecord;
  tryRecord: typeof tryRecord;
  tryOnNodes: typeof tryOnNodes;
  tryAlone: typeof tryAlone;
}

const BROWSER: DraftDeps = { getRecord, createRecord, changeRecord, deleteRecord, tryRecord, tryOnNodes, tryAlone };

/** One field before and after, in words. */
export interface Difference {
  field: string;
  before: string;
  after: string;
}

const same = (a: Value | undefined, b: Value | undefined) => JSON.stringify(a) === JSON.stringify(b);

export class Draft {
  readonly type: RecordType;
  /** Whether the name may be typed. */
  readonly named: boolean;
  name = $state('');
  values = $state<Values>({});
  /** What a new pin is made from. */
  source = $state<Source | null>(null);
  /** The record that the change is made from; null: there is none yet. */
  record = $state.raw<RecordAnswer | null>(null);
  step = $state<'loading' | 'edit' | 'review' | 'done' | 'undone'>('loading');
  busy = $state(false);
  /** Messages by field; those of no field are under ``. */
  faults = $state.raw<Faults>({});
  /** Messages about fields while the user fills in the form; they do not move the focus. */
  hints = $state.raw<Faults>({});
  problem = $state.raw<Problem | null>(null);
  /** The record was changed meanwhile. */
  conflict = $state(false);
  /** What others changed, after the newer state was loaded. */
  others = $state.raw<Difference[]>([]);
  changes = $state.raw<Difference[]>([]);
  /** Null: the nodes were not asked, because the token is limited to tenants. */
  verdicts = $state.raw<NodeVerdict[] | null>(null);
  saved = $state.raw<RecordAnswer | null>(null);
  readonly #by: Signed & { whole: boolean };
  readonly #deps: DraftDeps;

  constructor(type: RecordType, name: string | null, by: Signed & { whole: boolean }, deps: DraftDeps = BROWSER) {
    this.type = type;
    this.named = name === null;
    this.name = name ?? '';
    this.#by = by;
    this.#deps = deps;
    if (type === 'pins' && name === null) this.source = 'prefix';
  }

  /** Read the record. A tenant without a quota gets a new one. `given`: values of a new record. */
  async load(given: Json = {}): Promise<void> {
    if (typeof given.name === 'string') this.name = given.name;
    if (this.source && !given.prefix) this.source = 'text';
    await this.#trying(async () => {
      this.record = this.named ? null : await this.#found();
      this.values = this.#start(this.record, given);
      this.step = 'edit';
    });
  }

  /** Read the record, which may have been deleted, put earlier values in place of its own, and check the change. */
  async restore(earlier: Json): Promise<void> {
    await this.#trying(async () => {
      this.record = await this.#found(true);
      this.values = this.#start(this.record);
      for (const field of this.#fields) if (field.name in earlier) this.values[field.name] = shownValue(field, earlier[field.name]);
      this.step = 'edit';
    });
    if (this.step === 'edit') await this.check();
  }

  get #fields() {
    return fieldsOf(this.type, !this.named);
  }

  async #found(deleted = false): Promise<RecordAnswer | null> {
    try {
      return await this.#deps.getRecord(this.type, this.name);
    } catch (error) {
      if (error instanceof ApiError && error.problem.status === 404 && (deleted || this.type === 'quotas' || this.type === 'ceilings' || this.conflict)) return null;
      throw error;
    }
  }

  #start(record: RecordAnswer | null, given: Json = {}): Values {
    const held: Json = record ? bodyOf(this.type, record) : given;
    return Object.fromEntries(this.#fields.map((field) => [field.name, shownValue(field, held[field.name])]));
  }

  /** The whole record as typed. Fields that were not touched keep their exact value. Null: some field cannot be read. */
  #body(needsName = true): Json | null {
    const held: Json = this.record ? bodyOf(this.type, this.record) : {};
    const start = this.#start(this.record);
    const faults: Faults = {};
    const body: Json = {};
    for (const field of this.#fields) {
      const typed = this.values[field.name] ?? '';
      if (this.source && (SOURCES as readonly string[]).includes(field.name) && field.name !== this.source) continue;
      if (this.record && same(typed, start[field.name])) {
        if (field.name in held) body[field.name] = held[field.name];
        continue;
      }
      const parsed = parsedValue(field, typed);
      if ('fault' in parsed) faults[field.name] = [parsed.fault];
      else if (parsed.value !== undefined && !(parsed.value === null && !this.record)) body[field.name] = parsed.value;
    }
    const name = this.name.trim();
    const fault = !name ? 'expected a name' : this.named ? faultOf(NAMES[this.type], name) : null;
    if (needsName && fault) faults.name = [fault];
    // Browsers resolve these in addresses.
    if (needsName && ['.', '..'].includes(name)) faults.name = [`expected a name other than '.' and '..'`];
    if (needsName) this.faults = faults;
    return Object.keys(faults).length > 0 ? null : body;
  }

  /** Value of a field as typed, with sizes in bytes; undefined if it cannot be read. */
  parsed(name: string): unknown {
    const field = this.#fields.find((each) => each.name === name);
    if (!field) return null;
    const parsed = parsedValue(field, this.values[name] ?? '');
    if ('fault' in parsed) return undefined;
    return field.kind === 'size' && typeof parsed.value === 'string' ? sizeOf(parsed.value) : parsed.value;
  }

  /** Selector of the record as typed; undefined if it cannot be read. */
  get selector(): Record<string, string> | null | undefined {
    return this.parsed('selector') as Record<string, string> | null | undefined;
  }

  /** Ask the server and the nodes what the change would do. */
  async check(): Promise<void> {
    const body = this.#body();
    if (!body) return;
    const name = this.name.trim();
    if (!isPushed(this.type) || (this.type === 'pins' && this.record)) {
      await this.#trying(() => this.#alone(name, body));
      return;
    }
    await this.#trying(async () => {
      // Documents cannot name a hot prefix: its label is not stable. The nodes check it.
      if (!body.prefix) await this.#compare(name, body);
      else this.changes = this.#differences(body);
      if (Object.keys(this.faults).length > 0) return;
      this.verdicts = this.#by.whole ? await this.#verdicts(name, body) : null;
      const refused = this.verdicts?.flatMap((each) => each.faults) ?? [];
      const fields = placed(refused, this.type, name, this.#fields.map((each) => each.name));
      delete fields[''];
      this.faults = fields;
      this.step = 'review';
    });
  }

  /** What the connected nodes say. Without one, the record can be saved all the same: nodes receive it when they connect. */
  async #verdicts(name: string, body: Json): Promise<NodeVerdict[]> {
    try {
      return (await this.#deps.tryOnNodes(this.#by, this.type, name, body)).items;
    } catch (error) {
      if (error instanceof ApiError && error.problem.type === 'urn:larder:problem:node-unreachable') return [];
      throw error;
    }
  }

  /** Check the change on the server only, because the nodes do not receive the record or need not check it. */
  async #alone(name: string, body: Json): Promise<void> {
    const held = this.record ? bodyOf(this.type, this.record) : {};
    const sent = this.record ? mergePatch(held, body) : body;
    if (this.record && Object.keys(sent).length === 0) {
      this.faults = { '': ['Nothing would change.'] };
      return;
    }
    const answer = await this.#deps.tryAlone(this.#by, this.type, name, this.record?.etag ?? null, sent);
    this.verdicts = null;
    this.changes = this.#between(this.record, answer);
    this.step = 'review';
  }

  /** The fields that differ between two states of the record; for a new record, its fields. */
  #between(before: RecordAnswer | null, after: RecordAnswer): Difference[] {
    const [old, made] = [before as unknown as Json | null, after as unknown as Json];
    const names = [...this.#fields.map(({ name }) => name), ...(this.type === 'tokenizers' ? ['digest'] : [])];
    return names
      .filter((name) => name in made)
      .map((field) => ({ field, before: worded(field, old?.[field]), after: worded(field, made[field]) }))
      .filter((row) => (before ? row.before !== row.after : row.after !== NONE));
  }

  /**
   * While the user fills in the form of a new tier, ask the server whether the type accepts the budget and the
   * parameters. Only messages about fields that have been filled in are shown.
   */
  async probe(): Promise<void> {
    if (this.type !== 'tiers' || this.busy || this.step !== 'edit') return;
    const filled = (name: string) => String(this.values[name] ?? '').trim() !== '';
    if (!filled('type') || !(filled('budget_bytes') || filled('parameters'))) return;
    const body = this.#body(false);
    if (!body) return;
    try {
      await this.#deps.tryRecord(this.#by, this.type, this.name.trim() || 'new', body, true);
      this.hints = {};
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const found = placed(error.problem.errors ?? [], this.type, this.name.trim() || 'new', this.#fields.map((each) => each.name));
      this.hints = Object.fromEntries(Object.entries(found).filter(([field]) => filled(field)));
    }
  }

  async #compare(name: string, body: Json): Promise<void> {
    const owner = this.record ? this.record.managed_by : '';
    const answer = await this.#deps.tryRecord(this.#by, this.type, name, body, body.managed_by !== owner);
    const [change] = answer.records;
    if (change?.action === 'unchanged') this.faults = { '': ['Nothing would change.'] };
    else if (!this.record && change?.action === 'update') this.faults = { name: ['A record with this name already exists. Close this form and edit that record.'] };
    const fields = Object.entries(change?.fields ?? {});
    const differences = fields.map(([field, { before, after }]) => ({ field, before: worded(field, before), after: worded(field, after) }));
    // Of a new record, every field is a change: show those that are sent, as the server reads them.
    this.changes = this.record ? differences : differences.filter(({ field, after }) => field in body && after !== NONE);
  }

  #differences(body: Json): Difference[] {
    const held: Json = this.record ? bodyOf(this.type, this.record) : {};
    return Object.entries(body)
      .map(([field, value]) => ({ field, before: worded(field, held[field]), after: worded(field, value) }))
      .filter(({ before, after }) => before !== after);
  }

  back(): void {
    this.step = 'edit';
    this.problem = null;
  }

  async save(): Promise<void> {
    const body = this.#body();
    if (!body) {
      this.step = 'edit';
      return;
    }
    const name = this.name.trim();
    await this.#trying(async () => {
      this.saved = this.record
        ? await this.#deps.changeRecord(this.#by, this.type, name, this.record.etag, mergePatch(bodyOf(this.type, this.record), body))
        : await this.#deps.createRecord(this.#by, this.type, name, body);
      this.step = 'done';
    });
  }

  /** After a conflict: begin at the newer state, and keep what was typed. */
  async rebase(): Promise<void> {
    await this.#trying(async () => {
      const newer = await this.#found();
      const [old, now] = [this.#start(this.record), this.#start(newer)];
      const before: Json = this.record ? bodyOf(this.type, this.record) : {};
      const after: Json = newer ? bodyOf(this.type, newer) : {};
      this.others = this.#fields
        .filter(({ name }) => !same(old[name], now[name]))
        .map(({ name }) => ({ field: name, before: worded(name, before[name]), after: worded(name, after[name]) }));
      for (const [field, value] of Object.entries(now)) if (same(this.values[field], old[field])) this.values[field] = value;
      this.record = newer;
      this.conflict = false;
      this.step = 'edit';
    });
  }

  /** Bring back the state before the save, unless it was changed since. */
  async undo(): Promise<void> {
    const { saved, record } = this;
    if (!saved) return;
    const name = this.name.trim();
    await this.#trying(async () => {
      if (record) {
        const patch = mergePatch(bodyOf(this.type, saved), bodyOf(this.type, record));
        // The time to live sets the end.
        if (patch.ttl_s) delete patch.expires_at;
        this.saved = await this.#deps.changeRecord(this.#by, this.type, name, saved.etag, patch);
      } else {
        await this.#deps.deleteRecord(this.#by, this.type, name, saved.etag);
        this.saved = null;
      }
      this.step = 'undone';
    });
  }

  /** Read how far the nodes are with what was saved. */
  async follow(): Promise<void> {
    const { saved } = this;
    if (!saved || !isPushed(this.type)) return;
    let newer = { ...saved }; // Another object, so that the form asks again after a failure.
    try {
      newer = await this.#deps.getRecord(this.type, this.name.trim());
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
    // It may have been undone meanwhile.
    if (this.saved === saved) this.saved = newer;
  }

  async #trying(work: () => Promise<void>): Promise<void> {
    if (this.busy) return;
    this.busy = true;
    this.problem = null;
    this.faults = this.hints = {};
    try {
      await work();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#refused(error.problem);
    } finally {
      this.busy = false;
    }
  }

  #refused(problem: Problem): void {
    const errors = problem.errors ?? [];
    this.faults = placed(errors, this.type, this.name.trim(), this.#fields.map((each) => each.name));
    this.conflict = problem.status === 412;
    // Messages that are shown next to a field are not repeated.
    this.problem = errors.length > 0 && !this.faults[''] ? { ...problem, detail: '' } : problem;
    if (this.step !== 'loading' && this.step !== 'done') this.step = 'edit';
  }
}
