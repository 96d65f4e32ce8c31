/** States of a pin as marks. */

import type { Pin } from '../../api/types';
import { duration } from '../../format';
import { gpuCopyState, whyNowhere, type GpuCopyState } from '../nodes/gpu_copies';
import { onlyInTiers, pinState, unlisted, type PinState } from './pins';
import type { Level } from '../overview/findings';

export interface PinMark {
  tone: Level | 'off';
  label: string;
  title: string;
}

const MARKS: Record<PinState, PinMark> = {
  held: { tone: 'good', label: 'held', title: 'Every block of the pin is resident' },
  partial: { tone: 'note', label: 'partly resident', title: 'Missing blocks are kept when an engine stores them' },
  absent: { tone: 'off', label: 'nothing resident', title: 'Its blocks are kept when an engine stores them' },
  degraded: { tone: 'warn', label: 'degraded', title: 'Some resident blocks are beyond the pin budget and may be evicted' },
  expired: { tone: 'off', label: 'expired', title: 'It no longer keeps any blocks' },
};

const ON_GPUS: Partial<Record<GpuCopyState, PinMark>> = {
  all: { tone: 'good', label: 'on GPUs', title: 'Every resident block has a GPU copy on each GPU whose engines read it' },
  few: { tone: 'note', label: 'partly on GPUs', title: 'Some resident blocks lack a GPU copy on a GPU whose engines read them: they are copied now, or do not all fit' },
  nowhere: { tone: 'note', label: 'on no GPU', title: 'No GPU keeps GPU copies' },
  unread: { tone: 'off', label: 'for GPUs', title: 'No engine on a GPU reads it now: it has no GPU copies until one does' },
  'none-yet': { tone: 'off', label: 'for GPUs', title: 'Its blocks are copied to GPUs when an engine stores them' },
};

function ofBlocks(pin: Pin, unknown: boolean): PinMark {
  if (unknown && !pin.expired) return { tone: 'off', label: 'not known', title: 'No node reports now' };
  if (pin.holds_nothing) return { tone: 'warn', label: 'holds nothing', title: 'None of its blocks is cached; they are kept when an engine stores them' };
  if (pin.only_in_tiers > 0) return { tone: 'warn', label: 'not fully in memory', title: onlyInTiers(pin) };
  if (unlisted(pin)) return { tone: 'note', label: 'unknown until listed', title: unlisted(pin) };
  return MARKS[pinState(pin)];
}

/** `unknown`: no node reports. */
export function pinMarks(pin: Pin, unknown: boolean): PinMark[] {
  const gpu = ON_GPUS[gpuCopyState(pin)];
  return [
    ofBlocks(pin, unknown),
    ...(gpu && !pin.expired && !unknown ? [{ ...gpu, title: whyNowhere(pin) || gpu.title }] : []),
    ...(!pin.status.applied && !pin.expired ? [{ tone: 'warn' as const, label: 'not applied', title: 'At least one connected node has not applied this record yet' }] : []),
  ];
}

/** `expires in 2 h`, by the clock of the server. */
export function expiry(pin: Pin, now: number): string {
  if (pin.expires_at === null) return pin.strength === 'permanent' ? 'permanent' : 'never expires';
  const left = pin.expires_at - now;
  if (pin.expired) return `expired ${duration(Math.max(0, -left))} ago`;
  const end = left <= 0 ? 'expires now' : `expires in ${duration(left)}`;
  return pin.refresh_on_hit && pin.ttl_s !== null ? `${end}, each hit makes it ${duration(pin.ttl_s)}` : end;
}
