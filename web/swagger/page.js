// Addresses relative to the page, so that the page also works behind a proxy that adds a prefix.
const ROOT = new URL('..', window.location.href).href;
const BY_BROWSER = ['session', 'csrf'];

// What the browser sends by itself is nothing to be typed in.
const typed = (original) => (...given) => original(...given)?.filter((scheme) => !BY_BROWSER.some((name) => scheme.has(name)));

// Who is logged in to the dashboard is logged in here, and changes with its cookie need the session's token.
async function withSession(request) {
  request.url = request.url.replace(`${window.location.origin}/api/`, `${ROOT}api/`);
  const safe = ['GET', 'HEAD', 'OPTIONS'].includes((request.method ?? 'GET').toUpperCase());
  if (safe || request.headers.Authorization) return request;
  const answer = await fetch(`${ROOT}api/v1/session`);
  if (answer.ok) {
    const { csrf_token } = await answer.json();
    if (csrf_token) request.headers['X-CSRF-Token'] = csrf_token;
  }
  return request;
}

// Swagger UI compiles patterns without Unicode, and reports those that are valid only with it: the server checks them.
function isUnderstood(pattern) {
  try {
    return Boolean(new RegExp(pattern));
  } catch {
    return false;
  }
}
function withoutOtherPatterns(answer) {
  if (answer.url?.endsWith('/api/openapi.json') && answer.ok) {
    const keep = (name, value) => (name === 'pattern' && typeof value === 'string' && !isUnderstood(value) ? undefined : value);
    answer.text = JSON.stringify(JSON.parse(answer.text, keep));
  }
  return answer;
}

window.SwaggerUIBundle({
  url: `${ROOT}api/openapi.json`,
  dom_id: '#api',
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  defaultModelRendering: 'model',
  docExpansion: 'list',
  displayOperationId: true,
  displayRequestDuration: true,
  filter: true,
  tryItOutEnabled: true,
  validatorUrl: null,
  requestInterceptor: withSession,
  responseInterceptor: withoutOtherPatterns,
  plugins: [
    {
      statePlugins: {
        auth: { wrapSelectors: { definitionsToAuthorize: typed, getDefinitionsByNames: typed } },
      },
    },
  ],
});
