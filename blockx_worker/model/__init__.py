"""Words shared by all layers: ids, states, requests, results, policies and error codes. Data only, no behaviour."""
