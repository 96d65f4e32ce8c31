/**
 * The API's JSON. Salts, labels and notes are of others' choosing: characters that cannot be seen, or that turn the
 * direction of a line, become escapes here, once for all that is shown. The command line does the same.
 */

/** Not the plain space; also what Unicode lets displays leave out, and the empty Braille pattern. */
const UNSEEN = /(?! )[\p{Cf}\p{Co}\p{Cn}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/gu;

function escaped(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  const [letter, digits] = code > 0xffff ? ['U', 8] : code > 0xff ? ['u', 4] : ['x', 2];
  // The backslash is one of the text, not of JSON.
  return `\\\\${letter}${code.toString(16).padStart(digits, '0')}`;
}

/** Raises SyntaxError. */
export function read<T>(json: string): T {
  const data: unknown = JSON.parse(json);
  if (json.search(UNSEEN) < 0 && !json.includes('\\u')) return data as T;
  return JSON.parse(JSON.stringify(data).replace(UNSEEN, escaped)) as T;
}
