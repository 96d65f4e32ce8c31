/** The open dialog: pages open one, App shows it. */

import type { Json, RecordType } from '../model/records/fields';
import type { Engine } from '../api/types';

/** What an action answered, and how it can be undone. */
export interface Outcome {
  lines: string[];
  undo?: { label: string; run: () => Promise<Outcome | void> };
  /** Shown once and copied from here, such as a token. */
  secret?: string;
}

/** An action that is carried out after a confirmation. */
export interface Confirmation {
  title: string;
  /** What happens, and what is lost. */
  lines: string[];
  /** Text of the button, a verb with its object. */
  button: string;
  danger?: boolean;
  /** What a dry run tells, before the button can be used. */
  check?: () => Promise<string[]>;
  run: () => Promise<Outcome | void>;
}

export type Opened =
  | { what: 'edit'; type: RecordType; name: string; given?: Json | undefined }
  | { what: 'create'; type: RecordType; given: Json }
  | { what: 'delete'; type: RecordType; name: string }
  | { what: 'expel'; node: string; engine: Engine }
  | { what: 'confirm'; confirmation: Confirmation }
  | { what: 'token' }
  | { what: 'palette' };

/** Deleted pins whose keys are kept. */
const MAX_DELETED = 20;

export class Editing {
  opened = $state.raw<Opened | null>(null);
  /** Pins that were deleted in this tab, by name, with what creates them again: nothing else keeps their keys. */
  deletedPins = $state.raw<ReadonlyMap<string, Json>>(new Map());

  keepPin(name: string, body: Json): void {
    this.deletedPins = new Map([...this.deletedPins, [name, body] as const].slice(-MAX_DELETED));
  }

  /** `given`: values to put in place of those of the record, such as earlier ones. */
  edit(type: RecordType, name: string, given?: Json): void {
    this.opened = { what: 'edit', type, name, given };
  }

  create(type: RecordType, given: Json = {}): void {
    this.opened = { what: 'create', type, given };
  }

  delete(type: RecordType, name: string): void {
    this.opened = { what: 'delete', type, name };
  }

  expel(node: string, engine: Engine): void {
    this.opened = { what: 'expel', node, engine };
  }

  confirm(confirmation: Confirmation): void {
    this.opened = { what: 'confirm', confirmation };
  }

  createToken(): void {
    this.opened = { what: 'token' };
  }

  find(): void {
    this.opened = { what: 'palette' };
  }

  close(): void {
    this.opened = null;
  }

  /** Close the dialog and drop deleted pins, because another user may log in. */
  forget(): void {
    this.close();
    this.deletedPins = new Map();
  }
}
