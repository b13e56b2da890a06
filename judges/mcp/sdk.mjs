// npm @modelcontextprotocol/sdk 1.x: the era with a handshake.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

import { approve, DOOR, EARNEST_BIN, end, KEY, walk, walkAsked } from './road.mjs';

async function connect(capabilities) {
  const client = new Client({ name: 'judge', version: '1.0.0' }, { capabilities });
  const http = () =>
    new StreamableHTTPClientTransport(new URL(DOOR), {
      requestInit: { headers: { Authorization: `Bearer ${KEY}` } },
    });
  // A block of settings is all that a client knows: no search path, no folder, no environment of ours.
  const known = process.env.BLOCK && { ...JSON.parse(process.env.BLOCK), cwd: '/' };
  const stdio = () =>
    new StdioClientTransport(known || { command: EARNEST_BIN, args: ['mcp'], env: { ...process.env } });
  await client.connect(DOOR === 'stdio' ? stdio() : http());
  return client;
}

const tool = (client) => (name, args, options) =>
  client.callTool({ name, arguments: args }, undefined, options);

const client = await connect({});
await walk({
  list: async () => (await client.listTools()).tools.map((tool) => tool.name),
  call: tool(client),
  read: (uri) => client.readResource({ uri }),
});
await client.close();

// Over HTTP this era has no way to ask without a session.
if (DOOR === 'stdio') {
  const opened = [];
  const asked = await connect({ elicitation: { form: {}, url: {} } });
  asked.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
    opened.push(params.url);
    approve(params.url.split('/').at(-1));
    return { action: 'accept' };
  });
  await walkAsked(tool(asked), opened);
  await asked.close();
}
end();
