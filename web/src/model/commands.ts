/** The lines that the empty states tell an operator to run. */

export const START_NODE = 'larder up';

export const ATTACH_VLLM =
  'vllm serve MODEL --kv-transfer-config \'{"kv_connector": "LarderConnector", ' +
  '"kv_connector_module_path": "dataplane.engines.vllm", "kv_role": "kv_both"}\'';

export const TRY_DEMO = 'larder demo';
