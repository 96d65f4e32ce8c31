// Relative addresses, so that the page also works behind a proxy that adds a prefix.
window.SwaggerUIBundle({
  url: '../api/openapi.json',
  dom_id: '#api',
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  docExpansion: 'list',
  displayOperationId: true,
  tryItOutEnabled: true,
  validatorUrl: null,
});
