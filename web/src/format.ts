/** Numbers, sizes and times as an operator reads them: sizes in binary units as the command line writes them. */

const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'] as const;
const DECIMAL = ['', 'k', 'M', 'G', 'T'] as const;
/** Placeholder for a missing value. */
export const NONE = '–';

/** Round half to even, as the command line does. */
function rounded(value: number): number {
  const floor = Math.floor(value);
  return value - floor === 0.5 ? floor + (floor % 2) : Math.round(value);
}

/** `1.5 GiB`, `2 MiB`: three digits, or the whole number when it has more; a whole number of bytes below 1 KiB. */
export function bytes(value: number): string {
  let unit = 0;
  let size = Math.abs(value);
  while (rounded(size) >= 1024 && unit < BINARY.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const step = unit === 0 || size >= 100 ? 1 : size >= 10 ? 10 : 100;
  const shown = rounded(size * step) / step;
  return `${value < 0 ? '-' : ''}${shown < 1_000 ? shown : whole(shown)} ${BINARY[unit]}`;
}

/** `4GiB`, `1500`: a number of bytes without rounding, as the API reads it. */
export function exactSize(value: number): string {
  let unit = 0;
  let size = value;
  while (size > 0 && size % 1024 === 0 && unit < BINARY.length - 1) [size, unit] = [size / 1024, unit + 1];
  return `${size}${unit === 0 ? '' : BINARY[unit]}`;
}

/** Bytes of a text such as `4GiB`, `1.5 MiB` or `1,500k`, as the API reads it; null if it is no size. */
export function sizeOf(text: string): number | null {
  const [, number, prefix = '', binary] = /^ *(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?) *(?:([kmgtpe])(i)?)?b? *$/i.exec(text) ?? [];
  if (number === undefined) return null;
  const power = prefix ? 'kmgtpe'.indexOf(prefix.toLowerCase()) + 1 : 0;
  return Math.trunc(Number(number.replaceAll(',', '')) * (binary ? 1024 : 1000) ** power);
}

export function bytesPerSecond(value: number): string {
  return `${bytes(value)}/s`;
}

/** All digits with separators up to five of them, then `123 k`, `1.20 M`. */
export function count(value: number): string {
  if (Math.abs(value) < 100_000) return whole(value);
  let unit = 0;
  let size = Math.abs(value);
  // 999.5 would be shown as 1000, so it belongs to the next unit already.
  while (size >= 999.5 && unit < DECIMAL.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${value < 0 ? '-' : ''}${size.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0)} ${DECIMAL[unit]}`;
}

/** A number per second: `0.2`, `12.5`, `1,204`. */
export function rate(value: number): string {
  return value > 0 && value < 100 ? value.toFixed(1) : count(Math.round(value));
}

const WHOLE = new Intl.NumberFormat('en-GB', { maximumFractionDigits: 0 });

/** All digits with separators. */
export function whole(value: number): string {
  return WHOLE.format(value);
}

/** `93.4 %`. Only a ratio of exactly 1 is 100 %, and only 0 is 0 %. */
export function percent(ratio: number | null | undefined): string {
  if (ratio === null || ratio === undefined || Number.isNaN(ratio)) return NONE;
  if (ratio > 0 && ratio < 0.001) return '<0.1 %';
  if (ratio < 1 && ratio > 0.999) return '99.9 %';
  return ratio === 1 || ratio === 0 ? `${ratio * 100} %` : `${(ratio * 100).toFixed(1)} %`;
}

/** `part` as a fraction of `whole`, from 0 to 1; 0 if `whole` is 0. */
export function share(part: number, of: number): number {
  return of > 0 ? Math.min(1, Math.max(0, part / of)) : 0;
}

/** The two largest units: `45 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`. */
export function duration(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3_600) return two(s, 60, 'min', 1, 's');
  if (s < 86_400) return two(s, 3_600, 'h', 60, 'min');
  return two(s, 86_400, 'd', 3_600, 'h');
}

function two(s: number, big: number, bigUnit: string, small: number, smallUnit: string): string {
  const rest = Math.floor((s % big) / small);
  return `${Math.floor(s / big)} ${bigUnit}${rest ? ` ${rest} ${smallUnit}` : ''}`;
}

/** `now` under a second and a half, else `12 s ago`. */
export function ago(seconds: number): string {
  return seconds < 1.5 ? 'now' : `${duration(seconds)} ago`;
}

/** `14:03:07` in the browser's time zone. */
export function clock(unixSeconds: number): string {
  return new Date(unixSeconds * 1000).toLocaleTimeString('en-GB', { hour12: false });
}

/** `2026-03-01 14:03:07` in the browser's time zone. */
export function dateTime(unixSeconds: number): string {
  const d = new Date(unixSeconds * 1000);
  const part = (value: number) => String(value).padStart(2, '0');
  return `${d.getFullYear()}-${part(d.getMonth() + 1)}-${part(d.getDate())} ${clock(unixSeconds)}`;
}

/** A user-chosen name. One of only blanks is made visible. */
export function named(name: string): string {
  return name.trim() ? name : `'${name.replaceAll(' ', '\u00a0')}'`;
}

/** `1 node`, `3 nodes`. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${whole(n)} ${n === 1 ? one : many}`;
}

/** `over_limit` → `over limit`. */
export function codeWords(code: string): string {
  return code.toLowerCase().replaceAll('_', ' ');
}
