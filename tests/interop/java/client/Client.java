import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The official Java client, driven line by line: a JSON command on standard input, a JSON answer
 * on standard output, and one JSON event there for every message a consumer receives.
 * The commands are those of ../../programs.py. Argument: the name server.
 */
public final class Client {
    private static final PrintStream OUT = System.out;

    private final Producers producers;
    private final Consumers consumers;

    private Client(String namesrv) {
        producers = new Producers(namesrv);
        consumers = new Consumers(namesrv);
    }

    public static void main(String[] args) throws IOException {
        System.setOut(System.err); // log lines of the client must not mix with the answers
        Client client = new Client(args[0]);
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            if ("quit".equals(command.getString("do"))) {
                break;
            }
            client.answer(command);
        }
        client.producers.close();
        client.consumers.close();
        System.exit(0);
    }

    private void answer(JSONObject command) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("reply", command.getIntValue("id"));
        try {
            answer.put("result", run(command));
        } catch (Throwable error) {
            answer.put("error", error.toString());
        }
        emit(answer);
    }

    private Object run(JSONObject command) throws Exception {
        switch (command.getString("do")) {
            case "send": return producers.send(command);
            case "transaction": return producers.transaction(command);
            case "request": return producers.request(command);
            case "recall": return producers.recall(command);
            case "query": return producers.query(command);
            case "consume": return consumers.start(command);
            case "stop": return consumers.stop(command.getString("name"));
            case "pull": return consumers.pull(command);
            case "lite_pull": return consumers.litePull(command);
            default: throw new IllegalArgumentException("unknown command " + command);
        }
    }

    /** One line of output; also the consumers' threads come here. */
    static synchronized void emit(Map<String, Object> line) {
        byte[] text = (JSON.toJSONString(line) + "\n").getBytes(StandardCharsets.UTF_8);
        OUT.write(text, 0, text.length);
        OUT.flush();
    }
}
