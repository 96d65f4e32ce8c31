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

function fieldOf(name, schema) {
  const schemas = schema.anyOf ?? [schema];
  const kind = kindOf(name, schemas);
  return {
    name,
    kind,
    nullable: schemas.some((each) => each.type === 'null'),
    about: schema.description ?? '',
    ...(kind === 'choice' ? { choices: schemas.find((each) => each.enum).enum } : {}),
    ...(kind === 'set' ? { choices: listed(schemas) } : {}),
    ...(schema.default === undefined ? {} : { initial: schema.default }),
    ...(schema.examples ? { example: schema.examples[0] } : {}),
  };
}

/** TypeScript that declares the fields, one line each. */
export function formsOf(schemas) {
  const sections = Object.entries(RECORDS).map(([type, name]) => {
    const fields = Object.entries(schemas[name].properties).map(([field, schema]) => `    ${JSON.stringify(fieldOf(field, schema))},`);
    return `  ${type}: [\n${fields.join('\n')}\n  ],`;
  });
  return `import type { ApiField, RecordType } from '../model/records/fields';\n\nexport const FIELDS: Record<RecordType, readonly ApiField[]> = {\n${sections.join('\n')}\n};\n`;
}
