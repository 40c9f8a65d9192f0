"""Pop consumers and simple consumers: pop requests, receipts, acknowledgements."""
