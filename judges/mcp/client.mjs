// npm @modelcontextprotocol/client 2.x: the era in which every request speaks for itself.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

import { approve, DOOR, EARNEST_BIN, end, KEY, walk, walkAsked } from './road.mjs';

const ERA = '2026-07-28';

async function connect(capabilities) {
  const client = new Client(
    { name: 'judge', version: '2.0.0' },
    { capabilities, versionNegotiation: { mode: { pin: ERA } } },
  );
  const http = () =>
    new StreamableHTTPClientTransport(new URL(DOOR), {
      requestInit: { headers: { Authorization: `Bearer ${KEY}` } },
    });
  const stdio = () =>
    new StdioClientTransport({ command: EARNEST_BIN, args: ['mcp'], env: { ...process.env } });
  if (capabilities.elicitation) {
    client.setRequestHandler('elicitation/create', async ({ params }) => {
      opened.push(params.url);
      approve(params.url.split('/').at(-1));
      return { action: 'accept' };
    });
  }
  await client.connect(DOOR === 'stdio' ? stdio() : http());
  return client;
}

const tool = (client) => (name, args, options) => client.callTool({ name, arguments: args }, options);
const opened = [];

const client = await connect({});
await walk({
  list: async () => (await client.listTools()).tools.map((tool) => tool.name),
  call: tool(client),
  read: (uri) => client.readResource({ uri }),
  era: { wanted: ERA, found: client.getNegotiatedProtocolVersion?.() ?? ERA },
});
await client.close();

const asked = await connect({ elicitation: { form: {}, url: {} } });
await walkAsked(tool(asked), opened);
await asked.close();
end();
