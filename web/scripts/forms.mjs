// The fields of each record's PUT body, as the dashboard's forms need them: kind, choices, default, description. Forms
// follow the API: a field that is added to a record appears in its form.
const RECORDS = { quotas: 'QuotaPut', pins: 'PinPut', policies: 'PolicyPut', tiers: 'TierPut', ceilings: 'CeilingPut', rates: 'RatePut', tokenizers: 'TokenizerPut' };

/** The values of a list of choices; undefined for other fields. */
const listed = (schemas) => schemas.find((each) => each.type === 'array')?.items?.enum;

function kindOf(name, schemas) {
  const types = schemas.map((each) => each.type);
  if (name === 'tokenizer') return 'file';
  if (name === 'expires_at') return 'time';
  if (listed(schemas)) return 'set';
  if (schemas.some((each) => each.enum)) return 'choice';
  if (types.includes('boolean')) return 'flag';
  if (types.includes('integer') && types.includes('string')) return 'size';
  if (types.includes('array')) return 'json';
  if (types.includes('object')) {
    const { additionalProperties: values } = schemas.find((each) => each.type === 'object');
    return values?.$ref ? 'shares' : values?.type === 'string' ? 'labels' : 'json';
  }
  if (types.includes('string')) return 'text';
  if (types.includes('integer') || types.includes('number')) return 'number';
  throw new Error(`${name}: no kind of field fits ${JSON.stringify(schemas)}`);
}

/** Keywords of a schema that a form checks before it sends a value. */
const CHECKED = ['type', 'pattern', 'x-expected', 'minLength', 'maxLength', 'minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'minItems', 'maxItems', 'maxProperties'];
const INNER = ['items', 'propertyNames', 'additionalProperties'];

/** The checked part of a schema, with what it refers to; null is one of the values of every field that may be empty. */
function ruleOf(schema, components) {
  if (schema.$ref) return ruleOf(components[schema.$ref.split('/').pop()], components);
  if (schema.anyOf) {
    const choices = schema.anyOf.filter(({ type }) => type !== 'null').map((each) => ruleOf(each, components));
    return choices.length === 1 ? choices[0] : { anyOf: choices };
  }
  const rule = Object.fromEntries(CHECKED.filter((keyword) => keyword in schema).map((keyword) => [keyword, schema[keyword]]));
  for (const keyword of INNER) if (Object.keys(schema[keyword] || {}).length > 0) rule[keyword] = ruleOf(schema[keyword], components);
  if (schema.properties) rule.properties = Object.fromEntries(Object.entries(schema.properties).map(([name, each]) => [name, ruleOf(each, components)]));
  return rule;
}

function fieldOf(name, schema, components) {
  const schemas = schema.anyOf ?? [schema];
  const kind = kindOf(name, schemas);
  return {
    name,
    kind,
    nullable: schemas.some((each) => each.type === 'null'),
    about: schema.description ?? '',
    ...(['choice', 'set', 'flag', 'file'].includes(kind) ? {} : { rule: ruleOf(schema, components) }),
    ...(kind === 'choice' ? { choices: schemas.find((each) => each.enum).enum } : {}),
    ...(kind === 'set' ? { choices: listed(schemas) } : {}),
    ...(schema.default === undefined ? {} : { initial: schema.default }),
    ...(schema.examples ? { example: schema.examples[0] } : {}),
  };
}

/** TypeScript that declares the fields, one line each, and the names that records may have. */
export function formsOf({ components: { schemas }, paths }) {
  const sections = Object.entries(RECORDS).map(([type, name]) => {
    const fields = Object.entries(schemas[name].properties).map(([field, schema]) => `    ${JSON.stringify(fieldOf(field, schema, schemas))},`);
    return `  ${type}: [\n${fields.join('\n')}\n  ],`;
  });
  const names = Object.keys(RECORDS).map((type) => {
    const [, { put }] = Object.entries(paths).find(([path]) => path.startsWith(`/api/v1/${type}/{`) && path.endsWith('}'));
    return `  ${type}: ${JSON.stringify(ruleOf(put.parameters.find((each) => each.in === 'path').schema, schemas))},`;
  });
  return [
    "import type { ApiField, RecordType, Rule } from '../model/records/fields';",
    `export const NAMES: Record<RecordType, Rule> = {\n${names.join('\n')}\n};`,
    `export const FIELDS: Record<RecordType, readonly ApiField[]> = {\n${sections.join('\n')}\n};\n`,
  ].join('\n\n');
}
