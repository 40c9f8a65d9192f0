import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The official mqadmin, many commands in one JVM: a JSON list of arguments per line on standard
 * input, and per line of standard output what the command printed.
 */
public final class Admin {
    private static final PrintStream OUT = System.out;
    private static final PrintStream ERR = System.err;

    private Admin() {
    }

    /**
     * Some commands cannot run twice; main0 makes new ones for an empty list, whose name is another
     * one in each line of RocketMQ.
     */
    private static void runFresh(String[] args) throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
        MQAdminStartup.main0(args, null);
    }

    public static void main(String[] args) throws IOException {
        Thread waker = new Thread(Admin::wakeWaitingExecutors, "waker");
        waker.setDaemon(true);
        waker.start();
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            if ("quit".equals(command.getString("do"))) {
                break;
            }
            answer(command);
        }
        System.exit(0);
    }

    private static void answer(JSONObject command) {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        try {
            runFresh(command.getJSONArray("args").toArray(new String[0]));
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        } finally {
            System.setErr(ERR);
            System.setOut(OUT);
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("out", printed.toString(StandardCharsets.UTF_8));
        result.put("err", errors.toString(StandardCharsets.UTF_8));
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("reply", command.getIntValue("id"));
        answer.put("result", result);
        byte[] text = (JSON.toJSONString(answer) + "\n").getBytes(StandardCharsets.UTF_8);
        OUT.write(text, 0, text.length);
        OUT.flush();
    }

    /**
     * The client's event executor looks only every three seconds whether it should end, and each
     * command waits for it. An interrupt makes it look again, and has no other effect.
     */
    private static void wakeWaitingExecutors() {
        Thread[] threads = new Thread[1000];
        while (true) {
            int count = Thread.enumerate(threads);
            for (int n = 0; n < count; n++) {
                if (threads[n].getName().startsWith("NettyEventExecutor")) {
                    threads[n].interrupt();
                }
            }
            try {
                Thread.sleep(50);
            } catch (InterruptedException stop) {
                return;
            }
        }
    }
}
