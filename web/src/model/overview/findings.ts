/** What is not as it should be. */

import type { PageName } from '../frame/pages';

export type Level = 'bad' | 'warn' | 'note' | 'good';

export interface Finding {
  level: Exclude<Level, 'good'>;
  title: string;
  detail: string;
  /** The page with details, and the one thing on it that the finding is about; empty for several. */
  page: PageName;
  name?: string;
}
