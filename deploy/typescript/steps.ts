// Step a stream with the client that openapi-typescript generates from /openapi.json.
//
//   curl -o openapi.json http://127.0.0.1:8700/openapi.json
//   npm install && npm run generate && npm run build
//   node steps.js http://127.0.0.1:8700 policy site-1 0 1.5 1.7     (x0, then the contexts)
//
// A request is repeated with the same step number until it is answered, so a lost answer plays no reading twice.
import createClient from "openapi-fetch";
import type { components, paths } from "./service.d.ts";

type Step = components["schemas"]["StepRecord"];

const [url, policy, stream, x0, ...contexts] = process.argv.slice(2);
const token = process.env.ECL2O_TOKEN;
const client = createClient<paths>({
  baseUrl: url,
  headers: token ? { authorization: `Bearer ${token}` } : {},
});

const RETRIED = new Set([408, 500, 502, 503, 504]);
const ATTEMPTS = 8;

async function retry<T>(send: () => Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      const { data, error, response } = await send();
      if (data !== undefined) return data;
      if (!RETRIED.has(response.status) || attempt === ATTEMPTS) {
        throw new Error(`${response.status}: ${JSON.stringify(error)}`);
      }
    } catch (error) {
      if (!(error instanceof TypeError) || attempt === ATTEMPTS) throw error; // a TypeError is a lost connection
    }
    await new Promise((resume) => setTimeout(resume, Math.min(5000, 100 * 2 ** attempt)));
  }
}

const path = { params: { path: { id: stream } } };
const created = await retry(() => client.PUT("/streams/{id}", { ...path, body: { policy, x0: [Number(x0)] } }));
let step = created.steps;
for (const context of contexts) {
  step += 1;
  const body = { step, context: [context === "null" ? null : Number(context)] };
  const answer: Step = await retry(() => client.POST("/streams/{id}/steps", { ...path, body }));
  console.log(JSON.stringify({ step: answer.step, action: answer.action, cost: answer.cost }));
}
