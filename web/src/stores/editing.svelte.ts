/** The open dialog: panels open one, App shows it. */

import type { Json, RecordType } from '../model/fields';
import type { Engine } from '../api/types';

export type Opened =
  | { what: 'edit'; type: RecordType; name: string }
  | { what: 'create'; type: RecordType; given: Json }
  | { what: 'delete'; type: RecordType; name: string }
  | { what: 'expel'; node: string; engine: Engine };

export class Editing {
  opened = $state.raw<Opened | null>(null);

  edit(type: RecordType, name: string): void {
    this.opened = { what: 'edit', type, name };
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

  close(): void {
    this.opened = null;
  }
}
