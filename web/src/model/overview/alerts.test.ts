import { expect, test } from 'vitest';
import { auditLink, severityTone, webUrl } from './alerts';
import type { Change } from '../../api/types';

test('a severity has a tone', () => {
  expect(['critical', 'Page', 'warning', '', 'info'].map(severityTone)).toEqual(['bad', 'bad', 'warn', 'warn', 'note']);
});

test('only addresses of the web are links', () => {
  const given = ['https://a/b', 'HTTP://a', 'javascript:alert(1)', ' https://a', 'data:text/html,x', '//a', ''];
  expect(given.map(webUrl)).toEqual(['https://a/b', 'HTTP://a', '', '', '', '', '']);
});

test('a change leads to its entry of the audit', () => {
  const change = { kind: 'quota', name: 'a&b c', audit_id: 7 } as Change;
  expect(auditLink(change)).toBe('#/changes?kind=quota&name=a%26b+c&entry=7');
});
